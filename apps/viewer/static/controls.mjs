// Mouse, pen, fingers, wheel and keys move a camera.

const TURN = Math.PI;
const KEY_TURN = 0.08;
const FLY_KEYS = { KeyA: [-1, 0, 0], KeyD: [1, 0, 0], KeyQ: [0, 1, 0], KeyE: [0, -1, 0], KeyW: [0, 0, 1], KeyS: [0, 0, -1] };
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const [TAP_MS, TAP_PIXELS] = [320, 12];

export class Controls {
  /**
   * `element` gets the events. `actions` has moved(camera is still moving), recentre(x, y) and tap(x, y) in -1..1, and
   * key(event) for keys that do not move; `looking()` tells whether a drag turns on the spot, `width()` how wide the
   * picture is, if that is not the element's width.
   */
  constructor(element, camera, actions) {
    Object.assign(this, { element, camera, actions, pointers: new Map(), keys: new Set(), lastTap: null });
    const on = (name, handler, options) => element.addEventListener(name, handler.bind(this), options);
    on("pointerdown", this._down);
    on("pointermove", this._move);
    on("pointerup", this._upOrCancel);
    on("pointercancel", this._upOrCancel);
    on("wheel", this._wheel, { passive: false });
    on("contextmenu", (event) => event.preventDefault());
    on("gesturestart", this._gesture);
    on("gesturechange", this._gesture);
    on("keydown", this._keyDown);
    on("keyup", (event) => this.keys.delete(event.code));
    on("blur", () => this.keys.clear());
  }

  get flying() {
    return this.keys.size > 0;
  }

  /** Fly on while keys are held. */
  advance(seconds) {
    if (!this.flying) return false;
    const speed = seconds * (this.fast ? 1.8 : 0.6);
    const step = [0, 0, 0];
    for (const code of this.keys) FLY_KEYS[code].forEach((x, i) => (step[i] += x * speed));
    this.camera.fly(step);
    this.camera.level(0.1);
    return true;
  }

  _down(event) {
    if (event.target.closest("button, input, select, a")) return;
    this.element.focus({ preventScroll: true });
    this.element.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY, button: event.button });
    this.began = { x: event.clientX, y: event.clientY, time: event.timeStamp, single: this.pointers.size === 1 };
    if (event.button === 1) event.preventDefault();
  }

  _move(event) {
    const pointer = this.pointers.get(event.pointerId);
    if (!pointer) return;
    const before = this._spread();
    const size = this.element.clientHeight;
    const [dx, dy] = [(event.clientX - pointer.x) / size, (event.clientY - pointer.y) / size];
    Object.assign(pointer, { x: event.clientX, y: event.clientY });
    if (this._isTap(event) || (dx === 0 && dy === 0)) return;
    this.camera.level(0.08);
    if (this.pointers.size === 2) {
      const after = this._spread();
      if (before.distance > 0 && after.distance > 0) this.camera.zoom(before.distance / after.distance);
      this.camera.pan((after.x - before.x) / this._width, (after.y - before.y) / this._width);
    } else if (this.pointers.size === 1) {
      const wide = size / this._width;
      if (pointer.button > 0 || event.shiftKey) this.camera.pan(dx * wide, dy * wide);
      else if (this.actions.looking?.()) this.camera.look(dx * TURN * 0.4, dy * TURN * 0.4);
      else this.camera.orbit(dx * TURN, dy * TURN);
    }
    this.actions.moved(true, event.timeStamp);
  }

  get _width() {
    return this.actions.width?.() ?? this.element.clientWidth;
  }

  _upOrCancel(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    if (event.type === "pointerup" && this.began.single && this._isTap(event)) this._tap(event);
    else if (this.pointers.size === 0) this.actions.moved(false, event.timeStamp);
  }

  _tap(event) {
    const box = this.element.getBoundingClientRect();
    const at = [((event.clientX - box.left) / box.width) * 2 - 1, ((event.clientY - box.top) / box.height) * 2 - 1];
    const before = this.lastTap;
    this.lastTap = { time: event.timeStamp, x: event.clientX, y: event.clientY };
    const isNear = before && Math.hypot(event.clientX - before.x, event.clientY - before.y) < 2 * TAP_PIXELS;
    if (isNear && event.timeStamp - before.time < TAP_MS) {
      this.lastTap = null;
      this.actions.recentre?.(...at);
    } else this.actions.tap?.(...at);
  }

  /** Whether a pointer has hardly moved since it came down: fingers and mice shake. */
  _isTap(event) {
    if (this.began.moved) return false;
    const far = Math.hypot(event.clientX - this.began.x, event.clientY - this.began.y);
    const limit = event.pointerType === "touch" ? TAP_PIXELS : 3;
    if (far <= limit && this.pointers.size <= 1) return true;
    this.began.moved = true;
    return false;
  }

  _spread() {
    const [a, b] = [...this.pointers.values()];
    if (!b) return { x: 0, y: 0, distance: 0 };
    return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, distance: Math.hypot(a.x - b.x, a.y - b.y) };
  }

  _wheel(event) {
    event.preventDefault();
    // A pinch on a trackpad arrives as a wheel with ctrl; mice may count in lines or pages.
    const pixels = event.deltaY * ([1, 16, 400][event.deltaMode] ?? 1);
    this.camera.zoom(Math.exp(Math.max(-60, Math.min(60, pixels)) * (event.ctrlKey ? 0.012 : 0.0022)));
    this.camera.level(0.08);
    this.actions.moved(true, event.timeStamp);
  }

  /** Safari's pinch on a trackpad; that of two fingers on glass comes as pointers, too. */
  _gesture(event) {
    event.preventDefault();
    if (event.type === "gesturechange" && this.pointers.size === 0) {
      this.camera.zoom(this.lastScale / event.scale);
      this.actions.moved(true, event.timeStamp);
    }
    this.lastScale = event.scale;
  }

  _keyDown(event) {
    if (event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
    this.fast = event.shiftKey;
    const arrow = ARROWS[event.key];
    if (arrow && event.shiftKey) this.camera.pan(-arrow[0] * 0.04, -arrow[1] * 0.04);
    else if (arrow) this.camera.orbit(-arrow[0] * KEY_TURN, -arrow[1] * KEY_TURN);
    else if (event.key === "+" || event.key === "=") this.camera.zoom(1 / 1.1);
    else if (event.key === "-" || event.key === "_") this.camera.zoom(1.1);
    else if (FLY_KEYS[event.code]) this.keys.add(event.code);
    else {
      if (this.actions.key?.(event)) event.preventDefault();
      return;
    }
    event.preventDefault();
    if (!this.flying) this.camera.level(0.3);
    this.actions.moved(true, event.timeStamp);
  }
}
