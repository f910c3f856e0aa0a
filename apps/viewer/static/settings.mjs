// Field of view and size of the picture.

import { app } from "./app.mjs";
import { make } from "./dom.mjs";

/** The two labelled controls. */
export function settings() {
  const degrees = make("output", {}, "");
  const fov = make("input", {
    type: "range", min: 10, max: 90, step: 1,
    oninput: () => {
      app.camera.setFov(Number(fov.value));
      app.moved(true);
    },
  });
  const size = make("select", {
    onchange: () => {
      app.size = size.value.split(",").map(Number);
      app.moved(false);
    },
  });
  app.on("camera", () => {
    fov.value = app.camera.fov;
    degrees.textContent = `${Math.round(app.camera.fov)}°`;
  });
  app.on("scene-changed", () => fillSizes(size));
  return [
    make("label", { class: "nvs-field" }, make("span", {}, "Field of view"), fov, degrees),
    make("label", { class: "nvs-field" }, make("span", {}, "Pixels"), size),
  ];
}

/** Offer the sizes that the scene can be rendered at. */
export function fillSizes(select) {
  const sizes = app.scene?.sizes ?? [];
  const option = ([h, w]) => make("option", { value: `${h},${w}`, selected: `${app.size}` === `${h},${w}` }, `${w} × ${h}`);
  select.replaceChildren(...sizes.map(option));
  select.disabled = sizes.length < 2;
}
