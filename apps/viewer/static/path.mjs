// The camera path: its keyframes, how it moves, and its preview in the view.

import { app } from "./app.mjs";
import { button, download, icon, make } from "./dom.mjs";
import { Player } from "./player.mjs";
import { fillSizes } from "./settings.mjs";

const KINDS = { mp4: "Video (mp4)", gif: "Animation (gif)", png: "Pictures (zip of png)" };
const ROUTE_WAIT = 150;
const THUMB_WIDTH = 96;
const NO_SCENE = "No scene is open: choose one first.";

export class Path {
  constructor() {
    this.root = make("div");
    /** Starts to make a film: takes {path, kind, size, fps}. */
    this.makeFilm = () => {};
    this._build(this.root);
    app.on("path scene-changed", () => this._fill());
    app.on("add-keyframe", () => this._add());
    app.on("play", () => this._play());
    this.player = new Player((t) => this._showTime(t));
    app.movers.push(this.player);
    this._fill();
  }

  _build(root) {
    this.list = make("ol", { class: "nvs-keys", "aria-label": "Keyframes" });
    this.empty = make("p", { class: "nvs-hint" }, "Move the view and add keyframes: the camera will go through them. Or start from a preset.");
    const actions = make(
      "div",
      { class: "nvs-row" },
      button("key", "Add keyframe", () => this._add(), { title: "Keep the view as it is now (K)", "data-do": "add" }),
      button("orbit", "Orbit", () => this._preset("orbit"), { title: "Once around the scene", "data-do": "orbit" }),
      button("orbit", "Spiral", () => this._preset("spiral"), { title: "A spiral about the middle photo", "data-do": "spiral" }),
      button("bin", "Clear", () => app.setPath({ keyframes: [] }), { "data-do": "clear" }),
    );
    this.seconds = number(1, 120, 0.5, (seconds) => app.setPath({ seconds }));
    this.smoothness = make("input", { type: "range", min: 0, max: 1, step: 0.05, oninput: (event) => app.setPath({ smoothness: Number(event.target.value) }) });
    this.loop = make("input", { type: "checkbox", onchange: (event) => app.setPath({ loop: event.target.checked }) });
    this.settings = make(
      "div",
      { class: "nvs-row" },
      field("Seconds", this.seconds),
      field("Smoothness", this.smoothness),
      make("label", { class: "nvs-field" }, this.loop, "Loop"),
    );
    this.playButton = button("play", "Play", () => this._play(), { title: "Play in the view (space)", "data-do": "play" });
    this.scrub = make("input", { type: "range", min: 0, max: 1, step: 0.001, value: 0, class: "nvs-scrub", "aria-label": "Time", oninput: () => this._scrub() });
    this.clock = make("output", { class: "nvs-timing" }, "");
    this.preview = make("div", { class: "nvs-row" }, this.playButton, this.scrub, this.clock);
    this.file = make("input", { type: "file", accept: ".json,application/json", hidden: true, onchange: () => this._loadFile() });
    const files = make(
      "div",
      { class: "nvs-row" },
      button("save", "Save path", () => this._save(), { title: "As JSON, for this page and for nvs render --trajectory", "data-do": "save" }),
      button("open", "Load path", () => this.file.click(), { "data-do": "load" }),
      this.file,
    );
    this.message = make("p", { class: "nvs-hint nvs-problem", role: "status" });
    root.append(actions, this.empty, this.list, this.settings, this.preview, files, this.message, this._filmPanel());
  }

  _filmPanel() {
    const kinds = Object.entries(KINDS).map(([value, label]) => make("option", { value }, label));
    this.kind = make("select", {}, ...kinds);
    this.size = make("select", {});
    this.fps = number(1, 60, 1, (fps) => app.setPath({ fps }));
    this.film = make(
      "div",
      { class: "nvs-film" },
      make("h3", {}, "Film"),
      make(
        "div",
        { class: "nvs-row" },
        field("Kind", this.kind),
        field("Pixels", this.size),
        field("Pictures per second", this.fps),
        make("button", { type: "button", class: "nvs-button nvs-primary", "data-do": "export", onclick: () => this._export() }, "Make film"),
      ),
    );
    return this.film;
  }

  _fillFilm() {
    this.film.hidden = app.path.keyframes.length < 2;
    if (document.activeElement !== this.fps) this.fps.value = app.path.fps;
    if (this.sizesOf !== app.scene) fillSizes(this.size);
    this.sizesOf = app.scene;
  }

  _export() {
    const size = this.size.value.split(",").map(Number);
    if (!app.scene) return this._say(NO_SCENE);
    this.makeFilm({ path: app.scenePath(), kind: this.kind.value, size, fps: app.path.fps });
  }

  _fill() {
    const { keyframes, seconds, smoothness, loop } = app.path;
    const focused = document.activeElement?.dataset?.do && this.list.contains(document.activeElement) ? document.activeElement.dataset.do : null;
    this.list.replaceChildren(...keyframes.map((key, i) => this._row(key, i, keyframes.length)));
    if (focused) (this.list.querySelector(`[data-do="${focused}"]:not(:disabled)`) ?? this.list).focus();
    this.empty.hidden = keyframes.length > 0;
    this.settings.hidden = this.preview.hidden = keyframes.length < 2;
    if (document.activeElement !== this.seconds) this.seconds.value = seconds;
    this.smoothness.value = smoothness;
    this.loop.checked = loop;
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this._trace(), ROUTE_WAIT);
    this._fillFilm();
  }

  _row(key, i, count) {
    const act = (name, label, does, disabled = false) =>
      button(name, `${label} ${i + 1}`, does, { short: true, title: label, disabled, "data-do": `${label.toLowerCase().replaceAll(" ", "-")}-${i}` });
    const fov = number(5, 120, 1, (value) => this._change(i, { ...key, fov: value }));
    fov.value = Math.round(key.fov);
    fov.dataset.do = `fov-${i}`;
    fov.setAttribute("aria-label", `Field of view of keyframe ${i + 1}, in degrees`);
    const picture = key.thumb ? pictureOf(key) : icon("key");
    const go = make("button", { type: "button", class: "nvs-thumb", title: "Go to", "aria-label": `Go to keyframe ${i + 1}`, "data-do": `go-${i}`, onclick: () => this._go(key) }, picture);
    return make(
      "li",
      {},
      make("span", { class: "nvs-number", "aria-hidden": "true" }, `${i + 1}`),
      go,
      make("label", { class: "nvs-field", title: "Field of view" }, make("span", {}, "Field of view"), fov, "°"),
      make(
        "span",
        { class: "nvs-actions" },
        act("rise", "Move up", () => this._swap(i, i - 1), i === 0),
        act("sink", "Move down", () => this._swap(i, i + 1), i === count - 1),
        act("key", "Replace by this view", () => this._change(i, this._current())),
        act("bin", "Delete", () => app.setPath({ keyframes: app.path.keyframes.filter((_, at) => at !== i) })),
      ),
    );
  }

  _current() {
    return { c2w: app.toWorld(app.camera.c2w), fov: app.camera.fov, thumb: thumbnail() };
  }

  _add() {
    if (app.scene) app.setPath({ keyframes: [...app.path.keyframes, this._current()] });
  }

  _change(i, key) {
    app.setPath({ keyframes: app.path.keyframes.map((old, at) => (at === i ? key : old)) });
  }

  _swap(i, j) {
    const keyframes = [...app.path.keyframes];
    [keyframes[i], keyframes[j]] = [keyframes[j], keyframes[i]];
    app.setPath({ keyframes });
    this.list.querySelector(`[data-do="go-${j}"]`)?.focus();
  }

  _go(key) {
    if (!app.scene) return;
    this.player.stop();
    this._showPlaying();
    app.flyTo(app.toScene(key.c2w), { fov: key.fov });
  }

  async _preset(name) {
    if (!app.scene) return;
    const { seconds, fps } = app.path;
    this._take(await app.ask("preset", { preset: name, seconds, fps }));
  }

  async _save() {
    if (!app.scene) return this._say(NO_SCENE);
    if (!app.path.keyframes.length) return this._say("Add a keyframe first.");
    const answer = await app.ask("save_path", { path: app.scenePath() });
    if (answer?.text) download(new Blob([answer.text], { type: "application/json" }), `${app.scene.name}_path.json`);
    this._say(answer?.problem ?? (answer ? "" : "The server did not answer."));
  }

  async _loadFile() {
    const file = this.file.files[0];
    this.file.value = "";
    if (file) this._take(await app.ask("load_path", { text: await file.text() }));
  }

  /** Take over a path of the server's, whose keyframes are in the frame of the scene. */
  _take(answer) {
    this._say(answer?.problem ?? (answer ? "" : "The server did not answer."));
    if (!answer?.path) return;
    const keyframes = answer.path.keyframes.map(({ c2w, fov }) => ({ c2w: app.toWorld(c2w), fov }));
    app.setPath({ ...answer.path, keyframes });
    this._picture();
  }

  /** Small pictures for keyframes that have none yet, one after the other; the list stays as somebody works on it. */
  async _picture() {
    if (this.picturing) return;
    this.picturing = true;
    let key;
    try {
      while (app.scene && (key = app.path.keyframes.find((one) => one.thumb === undefined))) {
        const camera = { c2w: app.toScene(key.c2w), fov: key.fov, size: app.scene.size };
        const answer = await app.connection.picture(camera, { quality: "thumbnail" });
        key.thumb = small(await createImageBitmap(await answer.blob()));
        const at = app.path.keyframes.indexOf(key);
        this.list.querySelector(`[data-do="go-${at}"]`)?.replaceChildren(pictureOf(key));
      }
    } catch {
      // They are but small pictures: the list is complete without them.
    } finally {
      this.picturing = false;
    }
    app.remember();
  }

  /** Ask for the poses along the path. */
  async _trace() {
    const [path, scene] = [app.path, app.scene];
    if (!scene) return;
    const answer = path.keyframes.length > 1 ? await app.ask("path_poses", { path: app.scenePath() }) : { poses: [] };
    if (app.path !== path || app.scene !== scene) return;
    this._say(answer?.problem ?? "");
    app.route = answer?.poses ?? [];
    this.list.dataset.route = app.route.length;
    app.tell("route");
  }

  _play() {
    if (app.route.length < 2) return;
    if (this.player.active) this.player.stop();
    else this.player.start(Number(this.scrub.value) >= 1 ? 0 : Number(this.scrub.value));
    this._showPlaying();
    app.moved(this.player.active);
  }

  _scrub() {
    if (app.route.length < 2) return;
    this.player.stop();
    this.player.seek(Number(this.scrub.value));
    app.moved(true);
  }

  _showTime(t) {
    this.scrub.value = t;
    this.clock.textContent = `${(t * app.path.seconds).toFixed(1)} s`;
    this._showPlaying();
  }

  _showPlaying() {
    if (this.shownPlaying === this.player.active) return;
    this.shownPlaying = this.player.active;
    const [name, label] = this.player.active ? ["stop", "Stop"] : ["play", "Play"];
    this.playButton.replaceChildren(icon(name), make("span", { class: "nvs-label" }, label));
  }

  _say(text) {
    this.message.textContent = text;
  }
}

function number(min, max, step, change) {
  return make("input", {
    type: "number", min, max, step,
    onchange: (event) => {
      const value = Math.min(max, Math.max(min, Number(event.target.value) || min));
      event.target.value = value;
      change(value);
    },
  });
}

const pictureOf = (key) => make("img", { src: key.thumb, alt: "" });

const field = (label, input) => make("label", { class: "nvs-field" }, make("span", {}, label), input);

/** What the view shows, small. */
function thumbnail() {
  const picture = document.querySelector(".nvs-picture");
  return picture && picture.width > 1 ? small(picture) : null;
}

function small(picture) {
  const canvas = make("canvas", { width: THUMB_WIDTH, height: Math.round(THUMB_WIDTH / app.aspect) });
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.8);
}
