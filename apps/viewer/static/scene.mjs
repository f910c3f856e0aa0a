// What is open: its name, its size, and honest hints about it.

import { app } from "./app.mjs";
import { icon, make } from "./dom.mjs";

export class SceneCard {
  constructor(root) {
    this.root = root;
    app.on("scene-changed", () => this._fill());
    this._fill();
  }

  _fill() {
    const scene = app.scene;
    this.root.dataset.scene = scene?.id ?? "";
    if (!scene) {
      this.root.replaceChildren(make("p", { class: "nvs-hint" }, "No scene is open yet."));
      return;
    }
    const used = scene.photos.filter((photo) => photo.role === "input").length;
    const save = make("a", { class: "nvs-button", href: app.connection.url("state"), download: "", title: "The encoded scene, for this page and for nvs render" }, icon("save"), "Save scene");
    const notes = [...scene.hints, ...scene.warnings].map((text) => make("li", {}, text));
    this.root.replaceChildren(
      make(
        "div",
        { class: "nvs-row" },
        make("div", {}, make("strong", { class: "nvs-name" }, scene.name), make("p", { class: "nvs-hint" }, `${scene.format}, made from ${used} ${used === 1 ? "photo" : "photos"}`)),
        make("span", { class: "nvs-space" }),
        save,
      ),
      notes.length ? make("ul", { class: "nvs-notes" }, ...notes) : "",
    );
  }
}
