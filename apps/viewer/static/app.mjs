// What all parts of the page share: the scene, the camera, the camera path, and the pictures that come in.

import { Camera } from "./camera.mjs";
import { Connection } from "./connection.mjs";
import { inverse, transform } from "./math.mjs";

const REST_MS = 120;
const KEPT_CAMERAS = 256;
const NO_PATH = { keyframes: [], loop: false, seconds: 4, fps: 24, smoothness: 1 };

class App extends EventTarget {
  constructor() {
    super();
    this.camera = new Camera();
    this.scene = null;
    /** Keyframes hold poses in the world of the capture: the scene's own frame changes with the chosen photos. */
    this.path = structuredClone(NO_PATH);
    /** Poses along the path in the scene's frame, for drawing and preview. */
    this.route = [];
    this.size = null;
    this.shown = null;
    this.state = "connecting";
    this.seq = 0;
    this.sentSeq = 0;
    this.sent = new Map();
    this.movers = [];
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
  }

  /** Begin to talk to the server; `bridge` has token(session), ask(name, data) and act(name, data). */
  start(session, bridge) {
    if (this.connection) return;
    this.bridge = { ...bridge, session };
    this.connection = new Connection(new URL("../", import.meta.url), () => bridge.token(session), {
      state: (state) => {
        this.state = state;
        this.tell("state");
      },
      text: (message) => this._hear(message),
      frame: (frame) => this._receive(frame),
    });
    document.addEventListener("visibilitychange", () => this.connection.hidden(document.hidden));
    addEventListener("pagehide", () => this.remember());
    this.connection.connect();
  }

  on(names, handler) {
    for (const name of names.split(" ")) this.addEventListener(name, (event) => handler(event.detail));
  }

  tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  /** Ask the server a question about the scene that is open; undefined when it could not answer. */
  ask(name, data = {}) {
    return this.bridge.ask({ session: this.bridge.session, name, ...data });
  }

  get aspect() {
    return this.size ? this.size[1] / this.size[0] : 1;
  }

  /** A pose of the capture's world in the frame of the scene, and back. */
  toScene(c2w) {
    return transform(this.scene.world_to_scene, c2w);
  }

  toWorld(c2w) {
    return transform(inverse(this.scene.world_to_scene), c2w);
  }

  /** The camera has changed; `moving` while more is likely to follow. `time` is that of the event which caused it. */
  moved(moving, time = performance.now()) {
    this.moving = moving;
    this.eventTime = time;
    this.dirty = true;
    this._restSoon();
    this.tell("camera");
    // The first camera of an animation frame goes at once; those that follow within it wait for the next.
    if (!this.loop && this.scene) this._send();
    this._wake();
  }

  flyTo(c2w, options = {}) {
    if (!this.scene) return;
    this.camera.flyTo(c2w, { centre: this.scene.centre, ...options }, this.still.matches ? 0 : 0.45);
    this.moved(this.camera.flying);
  }

  flyToPhoto(index) {
    const photo = this.scene?.photos.find((one) => one.i === index);
    if (photo) this.flyTo(photo.c2w, { lens: photo.lens, photo: index });
  }

  goHome() {
    if (!this.scene) return;
    this.camera.setUp(this.scene.up);
    this.flyTo(this.scene.home.c2w, this._home);
  }

  /** The first view, which is that of a photo wherever there are photos. */
  get _home() {
    const { c2w, lens } = this.scene.home;
    const photo = this.scene.photos.find((one) => `${one.c2w}` === `${c2w}`);
    return { lens, photo: photo?.i ?? null, centre: this.scene.centre };
  }

  /** The photo that is flown to or shown exactly, or whose camera was shown last. */
  get nearbyPhoto() {
    return this.camera.goal ?? this.camera.photo ?? this.lastPhoto ?? null;
  }

  /** What is sent to the server for the camera as it stands. */
  message() {
    const { c2w, photo } = this.camera;
    return { c2w, lens: this.camera.lens(this.aspect), size: this.size, photo };
  }

  /** Keep the camera and the path for a reload of this tab. */
  remember() {
    if (!this.scene) return;
    const inputs = this.scene.photos.filter((photo) => photo.role === "input").map((photo) => photo.i);
    const view = { c2w: this.toWorld(this.camera.c2w), fov: this.camera.fov, photo: this.camera.photo };
    const kept = { source: this.scene.source, capture: captureOf(this.scene), inputs, view, path: this.path };
    sessionStorage.setItem("nvs-view", JSON.stringify(kept));
  }

  get remembered() {
    try {
      return JSON.parse(sessionStorage.getItem("nvs-view"));
    } catch {
      return null;
    }
  }

  setPath(changes) {
    this.path = { ...this.path, ...changes };
    this.remember();
    this.tell("path");
  }

  /** The path as the server takes it: keyframes in the scene's frame. */
  scenePath() {
    const keyframes = this.path.keyframes.map(({ c2w, fov }) => ({ c2w: this.toScene(c2w), fov }));
    return { ...this.path, keyframes };
  }

  _hear(message) {
    if (message.t === "hello" || message.t === "scene") this._takeScene(message);
    this.tell(message.t, message);
  }

  _takeScene({ scene, why = "" }) {
    const before = this.scene;
    const kept = this.remembered;
    if (scene && before && goesOn(before, scene)) {
      this.remember();
      this._restore(scene, this.remembered);
    } else if (scene) {
      this._restore(scene, kept?.capture === captureOf(scene) ? kept : null);
    } else if (before || kept) {
      if (before) this.remember();
      if (why !== "closed" && why !== "evicted") this.tell("reopen", this.remembered);
    } else this.tell("reopen", null);
    if (!scene) this.scene = null;
    this.tell("scene-changed", { why });
  }

  _restore(scene, kept) {
    this.scene = scene;
    this.size = scene.sizes.some((size) => `${size}` === `${this.size}`) ? this.size : scene.size;
    this.camera.reach = scene.radius;
    this.camera.setUp(scene.up);
    this.path = kept?.path ?? structuredClone(NO_PATH);
    const photo = kept && scene.photos.find((one) => one.i === kept.view.photo);
    if (photo) this.camera.set(photo.c2w, { lens: photo.lens, photo: photo.i, centre: scene.centre });
    else if (kept) this.camera.set(this.toScene(kept.view.c2w), { fov: kept.view.fov, centre: scene.centre });
    else this.camera.set(scene.home.c2w, this._home);
    this.remember();
    this.tell("path");
    this.moved(false);
  }

  /** A camera that stands still for a moment gets its full picture. */
  _restSoon() {
    clearTimeout(this.restTimer);
    if (this.moving) this.restTimer = setTimeout(() => this._rest(), REST_MS);
  }

  _rest() {
    if (this.movers.some((mover) => mover.active) || this.camera.flying) return;
    this.moved(false, this.eventTime);
  }

  _wake() {
    if (!this.loop) this.loop = requestAnimationFrame((time) => this._tick(time));
  }

  /** Once per animation frame, and only while something changes. */
  _tick(time) {
    const seconds = Math.min(0.1, (time - (this.lastTick ?? time)) / 1000 || 1 / 60);
    this.lastTick = time;
    this.loop = null;
    const wasFlying = this.camera.flying;
    const busy = this.movers.map((mover) => mover.advance(seconds)).some(Boolean) || this.camera.advance(seconds);
    if (busy || wasFlying) {
      this.moving = busy;
      this.dirty = true;
      this.eventTime = time;
      this.tell("camera");
    }
    if (this.dirty && this.scene) this._send();
    if (busy) this._wake();
    else {
      this.lastTick = undefined;
      this._restSoon();
    }
  }

  _send() {
    this.dirty = false;
    this.seq += 1;
    const message = this.message();
    this.sentSeq = this.seq;
    this.sent.set(this.seq, { ...message, time: this.eventTime });
    if (this.sent.size > KEPT_CAMERAS) this.sent.delete(this.sent.keys().next().value);
    if (this.camera.photo !== null) this.lastPhoto = this.camera.photo;
    this.connection.send({ t: "cam", seq: this.seq, moving: this.moving, ...message });
    this.tell("sent");
  }

  async _receive(frame) {
    const isOld = () => this.shown && (frame.seq < this.shown.seq || (frame.seq === this.shown.seq && this.shown.full && !frame.full));
    try {
      if (isOld()) return;
      const picture = await createImageBitmap(frame.blob);
      if (!isOld()) {
        this.shown = { ...this.sent.get(frame.seq), seq: frame.seq, full: frame.full, ms: frame.ms };
        this.tell("frame", { ...this.shown, picture, width: picture.width, height: picture.height });
      }
      picture.close();
    } finally {
      frame.done();
    }
  }
}

/** What stays the same when only the chosen photos of a capture change. */
const captureOf = (scene) => scene.capture ?? scene.source;

/** Whether a scene only has other photos than the one before: its path and view stay. */
const goesOn = (before, scene) =>
  captureOf(before) === captureOf(scene) || (before.source === scene.source && `${before.world_to_scene}` === `${scene.world_to_scene}`);

/** The page has one. */
export const app = new App();
