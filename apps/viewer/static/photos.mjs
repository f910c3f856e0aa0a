// The strip of photos: click one to fly to its camera, check those that the scene is made from.

import { app } from "./app.mjs";
import { make } from "./dom.mjs";

const MOST = 400;

export class Photos {
  constructor(root) {
    this.strip = make("ul", { class: "nvs-strip", "aria-label": "Photos" });
    this.summary = make("span", { class: "nvs-summary" });
    this.apply = make("button", { type: "button", class: "nvs-button nvs-primary", onclick: () => this._apply() });
    this.undo = make("button", { type: "button", class: "nvs-button", onclick: () => this._fill() }, "Undo");
    this.add = make("button", { type: "button", class: "nvs-button", onclick: () => this._add(), title: "The scene takes in more photos and keeps what it has" });
    const actions = make("span", { class: "nvs-actions" }, this.undo, this.add, this.apply);
    root.append(make("div", { class: "nvs-heading" }, make("h2", {}, "Photos"), this.summary, actions), this.strip);
    app.on("scene-changed", () => this._fill());
    app.on("camera sent", () => this._markCurrent());
    this._fill();
  }

  get chosen() {
    return [...this.strip.querySelectorAll("input:checked")].map((box) => Number(box.value));
  }

  _fill() {
    const scene = app.scene;
    this.inputs = (scene?.photos ?? []).filter((photo) => photo.role === "input").map((photo) => photo.i);
    const rows = ordered(scene).map((photo, place) => this._row(photo, place));
    this.strip.replaceChildren(...rows);
    this._loadThumbs();
    this._count();
    this.marked = undefined;
    this._markCurrent();
  }

  _row(photo, place) {
    const scene = app.scene;
    const key = place < 9 ? ` (key ${place + 1})` : "";
    const picture = make("img", { alt: "", loading: "lazy", src: app.connection.url(`thumb/${photo.i}`, { scene: scene.id }) });
    const go = make(
      "button",
      {
        type: "button",
        class: "nvs-thumb",
        title: `Go to photo ${photo.i}, ${photo.name}${key}`,
        "aria-label": `Go to photo ${photo.i}, ${ROLES[photo.role]}`,
        onclick: () => app.flyToPhoto(photo.i),
      },
      picture,
    );
    const box = make("input", {
      type: "checkbox",
      value: photo.i,
      checked: photo.role === "input",
      disabled: !scene.editable,
      "aria-label": `Use photo ${photo.i}`,
      onchange: () => this._count(),
    });
    return make("li", { "data-photo": photo.i, "data-role": photo.role }, go, make("label", { class: "nvs-check" }, box, `${photo.i}`));
  }

  /** The thumbnails that lines in space carry, as pictures that a canvas can draw. */
  async _loadThumbs() {
    const scene = app.scene;
    app.thumbs = new Map();
    for (const photo of ordered(scene).filter((one) => one.role !== "unused").slice(0, MOST)) {
      const image = new Image();
      image.src = app.connection.url(`thumb/${photo.i}`, { scene: scene.id });
      await image.decode().catch(() => {});
      if (app.scene !== scene) return;
      if (image.naturalWidth) app.thumbs.set(photo.i, image);
      app.tell("photos");
    }
  }

  _count() {
    const [chosen, all] = [this.chosen, app.scene?.photos.length ?? 0];
    const changed = `${[...chosen].sort()}` !== `${[...this.inputs].sort()}`;
    this.summary.textContent = all ? `${this.inputs.length} of ${all} used` : "";
    if (app.scene && !app.scene.editable) this.summary.textContent += ", fixed in a saved scene";
    this.apply.hidden = this.undo.hidden = !changed;
    const more = this._more();
    this.add.hidden = !app.scene?.extendable || !more.length || chosen.length !== this.inputs.length + more.length;
    this.add.textContent = `Add ${more.length === 1 ? "this photo" : `these ${more.length}`}`;
    this.apply.disabled = chosen.length === 0;
    this.apply.textContent = chosen.length === 1 ? "Use this photo" : `Use these ${chosen.length} photos`;
  }

  /** Checked photos that the scene is not made from yet. */
  _more() {
    return this.chosen.filter((photo) => !this.inputs.includes(photo));
  }

  _add() {
    app.bridge.act("add", { inputs: this._more() });
  }

  _apply() {
    app.bridge.act("inputs", { inputs: this.chosen });
  }

  _markCurrent() {
    if (this.marked === app.camera.photo) return;
    this.marked = app.camera.photo;
    for (const row of this.strip.children) {
      const isHere = Number(row.dataset.photo) === app.camera.photo;
      row.firstElementChild.toggleAttribute("aria-current", isHere);
    }
  }
}

export const ROLES = { input: "used", "held-out": "held out", unused: "not used" };

/** Photos in the order of the strip and of the digit keys: those that are used come first. */
export function ordered(scene) {
  const rank = { input: 0, "held-out": 1, unused: 2 };
  return [...(scene?.photos ?? [])].sort((a, b) => rank[a.role] - rank[b.role] || a.i - b.i);
}
