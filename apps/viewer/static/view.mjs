// The view: one picture that follows the camera, what is drawn over it, and its buttons.

import { app } from "./app.mjs";
import { Controls } from "./controls.mjs";
import { button, color, download, fit, make } from "./dom.mjs";
import { showHelp } from "./help.mjs";
import { Space, boundsOf } from "./lines.mjs";
import { length, position, sub } from "./math.mjs";
import { ordered } from "./photos.mjs";
import { settings } from "./settings.mjs";

const BANNERS = {
  connecting: "Connecting…",
  lost: "Connection lost. Reconnecting…",
  full: "Too many viewers are open. Close another tab; this one tries again.",
  refused: "The server does not know the address of this page. Start it with --allowed-hosts and the name in the address.",
};

export class View {
  constructor(root) {
    this.root = root;
    this.layers = { cameras: false, bounds: false };
    this.mode = "orbit";
    this._build();
    const controls = new Controls(this.stage, app.camera, {
      moved: (moving, time) => this._moved(moving, time),
      recentre: (x, y) => {
        const [u, v] = this._inPicture(x, y);
        app.camera.recentre(u, v, app.aspect, app.still.matches ? 0 : 0.25);
        app.moved(app.camera.flying);
      },
      looking: () => this.mode === "look",
      width: () => Math.min(this.stage.clientWidth, this.stage.clientHeight * app.aspect),
      key: (event) => this._key(event),
    });
    app.movers.push({
      advance: (seconds) => controls.advance(seconds),
      get active() {
        return controls.flying;
      },
    });
    this._listen();
  }

  _build() {
    this.picture = make("canvas", { class: "nvs-picture", "aria-hidden": "true", width: 1, height: 1 });
    this.overlay = make("canvas", { class: "nvs-overlay", "aria-hidden": "true" });
    this.badge = make("span", { class: "nvs-badge", hidden: true }, "preview");
    this.note = make("span", { class: "nvs-note", hidden: true });
    this.banner = make("div", { class: "nvs-banner", role: "alert" }, BANNERS.connecting);
    this.stage = make(
      "div",
      {
        class: "nvs-stage",
        tabindex: 0,
        role: "application",
        "aria-label": "Live view of the scene. Arrow keys turn, plus and minus zoom, question mark lists all keys.",
        "aria-describedby": "nvs-status",
        "data-state": "connecting",
      },
      this.picture,
      this.overlay,
      make("div", { class: "nvs-chips" }, this.badge, this.note),
      this.banner,
    );
    this.timing = make("span", { class: "nvs-timing" }, "");
    this.status = make("span", { id: "nvs-status", class: "nvs-hidden", role: "status", "aria-live": "polite" });
    this.root.append(this.stage, this._toolbar(), make("div", { class: "nvs-line" }, ...settings(), this.timing), this.status);
  }

  _toolbar() {
    const toggle = (name, layer, label, title) =>
      button(name, label, (event) => this._toggle(layer, event.currentTarget), {
        title,
        "aria-pressed": this.layers[layer],
        "data-layer": layer,
      });
    this.modeButton = button("look", "Look", () => this._setMode(this.mode === "orbit" ? "look" : "orbit"), {
      "aria-pressed": false,
      title: "Dragging turns your head instead of the scene (L)",
    });
    const press = (factor) => () => {
      app.camera.zoom(factor);
      app.moved(true);
    };
    return make(
      "div",
      { class: "nvs-toolbar", role: "toolbar", "aria-label": "View" },
      button("home", "Reset", () => app.goHome(), { title: "Back to the first view (R)" }),
      button("up", "Set up", () => this._setUp(), { title: "What is up in the picture becomes up (U)" }),
      this.modeButton,
      button("plus", "Nearer", press(1 / 1.2), { short: true, title: "Nearer (+)" }),
      button("minus", "Farther", press(1.2), { short: true, title: "Farther away (-)" }),
      make("span", { class: "nvs-space" }),
      toggle("cameras", "cameras", "Cameras", "Show where the photos were taken (C)"),
      toggle("box", "bounds", "Bounds", "Show the room that the photos look at (B)"),
      button("shot", "Save picture", () => this._screenshot(), { short: true, title: "Save this picture as PNG (P)" }),
      button("full", "Full screen", () => this._fullscreen(), { short: true, title: "Full screen (F)" }),
      button("help", "Help", () => showHelp(), { short: true, title: "Keys and gestures (?)" }),
    );
  }

  _listen() {
    app.on("frame", (frame) => this._show(frame));
    app.on("state", () => this._showState());
    app.on("sent", () => this._mark());
    app.on("photos route", () => this._drawSoon());
    app.on("info", ({ seq, notes, psnr }) => {
      if (seq < app.seq) return;
      this._setNote(notes.join(" "));
      this.likeness = { seq, psnr };
    });
    app.on("error", ({ message }) => this._setBanner(message));
    app.on("scene-changed", () => this._sceneChanged());
    app.on("scene", ({ message, source }) => message && this._offerAgain(message, source));
    new ResizeObserver(() => this._drawSoon()).observe(this.stage);
    this._sceneChanged();
  }

  _moved(moving, time) {
    if (!app.scene) return;
    this._setNote("");
    app.moved(moving, time);
  }

  _show(frame) {
    if (this.picture.width !== frame.width || this.picture.height !== frame.height)
      Object.assign(this.picture, { width: frame.width, height: frame.height });
    this.picture.getContext("2d").drawImage(frame.picture, 0, 0);
    this.badge.hidden = frame.full;
    this.timing.textContent = this._tellTiming(frame);
    if (frame.full && frame.seq === app.seq) this.status.textContent = this._describe();
    // A picture that was under way when its scene was removed must not hide that it was.
    if (app.state === "live" && app.scene) this._setBanner("");
    this._mark();
    this._drawOverlay();
    const { seq, full, ms, width, height, time } = frame;
    const detail = { seq, full, ms, width, height, latency: performance.now() - time };
    this.stage.dispatchEvent(new CustomEvent("nvs-frame", { detail }));
  }

  _tellTiming({ width, height, ms, full, seq }) {
    const likeness = full && this.likeness?.seq === seq ? this.likeness.psnr : null;
    const told = `${width} × ${height} pixels in ${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
    return likeness === null ? told : `${told}, ${likeness.toFixed(1)} dB like the photo`;
  }

  /** What tests and scripts wait for. */
  _mark() {
    const { shown, seq } = app;
    Object.assign(this.stage.dataset, { seq, shown: shown?.seq ?? 0, full: Boolean(shown?.full && shown.seq === seq) });
  }

  _describe() {
    const photo = app.camera.photo;
    if (photo === null) return "Full picture shown.";
    return `Full picture shown, at the camera of photo ${photo}.`;
  }

  _showState() {
    this.stage.dataset.state = app.state;
    this._setBanner(BANNERS[app.state] ?? "");
  }

  _setBanner(text) {
    this.banner.textContent = text;
    this.banner.hidden = !text;
  }

  /** The server had no room for the scene any more; an upload has no source to open it from. */
  _offerAgain(message, source) {
    const again = () => {
      this._setBanner("");
      app.tell("reopen", app.remembered);
    };
    this._setBanner(message);
    if (!source) return;
    this.banner.append(" ", make("button", { type: "button", class: "nvs-button", onclick: again }, "Open it again"));
  }

  _setNote(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }

  _sceneChanged() {
    const scene = app.scene;
    this.stage.dataset.scene = scene?.id ?? "";
    if (!scene) return;
    this.stage.style.setProperty("--nvs-aspect", app.aspect);
  }

  _setMode(mode) {
    this.mode = mode;
    this.modeButton.setAttribute("aria-pressed", mode === "look");
  }

  _setUp() {
    app.camera.setUp();
    this.status.textContent = "Up is now what is up in the picture.";
  }

  _toggle(layer, pressed = this.root.querySelector(`[data-layer=${layer}]`)) {
    this.layers[layer] = !this.layers[layer];
    pressed.setAttribute("aria-pressed", this.layers[layer]);
    this._drawOverlay();
  }

  async _screenshot() {
    if (!app.scene) return;
    try {
      const answer = await app.connection.picture(app.message());
      download(await answer.blob(), `${app.scene.name}.png`);
    } catch (error) {
      this._setBanner(error.message);
    }
  }

  _fullscreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.stage.requestFullscreen?.();
  }

  _key(event) {
    const actions = {
      r: () => app.goHome(),
      Home: () => app.goHome(),
      u: () => this._setUp(),
      l: () => this._setMode(this.mode === "orbit" ? "look" : "orbit"),
      c: () => this._toggle("cameras"),
      b: () => this._toggle("bounds"),
      k: () => app.tell("add-keyframe"),
      p: () => this._screenshot(),
      f: () => this._fullscreen(),
      "?": () => showHelp(),
      "[": () => this._stepPhoto(-1),
      "]": () => this._stepPhoto(1),
      " ": () => app.tell("play"),
    };
    const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    const digit = /^[1-9]$/.test(event.key) && ordered(app.scene)[Number(event.key) - 1];
    if (digit) app.flyToPhoto(digit.i);
    else if (action) action();
    return Boolean(digit || action);
  }

  _stepPhoto(step) {
    const photos = ordered(app.scene);
    if (!photos.length) return;
    const at = photos.findIndex((photo) => photo.i === app.nearbyPhoto);
    app.flyToPhoto(photos[(at + step + photos.length) % photos.length].i);
  }

  /** From -1..1 across the stage to -1..1 across the picture, which keeps its shape within the stage. */
  _inPicture(x, y) {
    const stage = this.stage.clientWidth / this.stage.clientHeight;
    return stage > app.aspect ? [(x * stage) / app.aspect, y] : [x, (y * app.aspect) / stage];
  }

  _drawSoon() {
    this.drawing ??= requestAnimationFrame(() => {
      this.drawing = null;
      this._drawOverlay();
    });
  }

  /** Lines have the pose of the picture that is shown, so that they do not swim on it. */
  _drawOverlay() {
    const isEmpty = !this.layers.bounds && !this.layers.cameras;
    if (isEmpty && this.wasEmpty) return;
    this.wasEmpty = isEmpty;
    const { width, height, context } = fit(this.overlay);
    const { shown, scene } = app;
    if (!scene || !shown?.c2w) return;
    const space = new Space(context, width, height, shown.c2w, shown.lens);
    context.lineWidth = 1.5;
    if (this.layers.bounds) {
      context.strokeStyle = color(this.stage, "--nvs-bounds");
      space.box(boundsOf(scene));
    }
    if (this.layers.cameras) this._drawCameras(space, scene, shown);
  }

  _drawCameras(space, scene, shown) {
    const [used, other] = ["--nvs-accent", "--nvs-faint"].map((name) => color(this.stage, name));
    for (const photo of scene.photos) {
      const isHere = length(sub(position(photo.c2w), position(shown.c2w))) < 0.2 * scene.radius;
      if (photo.role === "unused" || isHere) continue;
      space.context.strokeStyle = photo.role === "input" ? used : other;
      space.frustum(photo.c2w, photo.lens, 0.16 * scene.radius, app.thumbs?.get(photo.i));
    }
    space.context.strokeStyle = color(this.stage, "--nvs-camera");
    space.chain(app.route.map((one) => position(one.c2w)));
  }
}
