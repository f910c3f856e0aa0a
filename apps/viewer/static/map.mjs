// The map: where the photos were taken, where the camera is, and its path.

import { app } from "./app.mjs";
import { Camera, fovOf } from "./camera.mjs";
import { Controls } from "./controls.mjs";
import { color, fit, make } from "./dom.mjs";
import { Space, boundsOf } from "./lines.mjs";
import { add, basis, cross, pose, position, scale, sub, unit } from "./math.mjs";

/** Focal length in heights of the map. */
const FOCAL = 1.9;

export class Map3D {
  constructor(root) {
    this.camera = new Camera();
    /** Photos in the map with their places on it, the nearest last. */
    this.targets = [];
    app.map = this;
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.still = make("canvas");
    this.element = make(
      "div",
      {
        class: "nvs-map",
        tabindex: 0,
        role: "application",
        "aria-label": "Map of the cameras. Arrow keys turn it; the photos below lead to each camera.",
      },
      this.canvas,
    );
    const used = make("span", { class: "nvs-key nvs-key-used" }, "photos used");
    const other = make("span", { class: "nvs-key nvs-key-other" }, "other photos");
    const camera = make("span", { class: "nvs-key nvs-key-camera" }, "you");
    const legend = make("span", { class: "nvs-legend" }, used, other, camera);
    root.append(make("div", { class: "nvs-heading" }, make("h2", {}, "Map"), legend), this.element);
    new Controls(this.element, this.camera, {
      moved: () => this._drawSoon(),
      tap: (x, y) => this._tap(x, y),
    });
    this.element.addEventListener("pointermove", (event) => this._point(event));
    app.on("scene-changed", () => this._reset());
    app.on("camera path route", () => this._drawSoon());
    app.on("photos", () => this._drawAnew());
    new ResizeObserver(() => this._drawSoon()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this._drawAnew());
    this._reset();
  }

  _reset() {
    const scene = app.scene;
    if (!scene || this.shownScene === scene.source) return this._drawAnew();
    this.shownScene = scene.source;
    this.camera.reach = scene.radius;
    this.camera.setUp(scene.up);
    const [first, second] = basis(scene.up);
    const offset = add(scale(first, -2.6), add(scale(second, -1.6), scale(scene.up, 1.7)));
    const place = add(scene.centre, scale(offset, scene.radius * 1.3));
    this.camera.set(lookAt(place, scene.centre, scene.up), { centre: scene.centre });
    this._drawAnew();
  }

  _drawAnew() {
    this.stale = true;
    this._drawSoon();
  }

  _drawSoon() {
    this.drawing ??= requestAnimationFrame(() => {
      this.drawing = null;
      this._draw();
    });
  }

  _draw() {
    const { width, height, context } = fit(this.canvas);
    const scene = app.scene;
    if (!scene || !width) return;
    const lens = [(FOCAL * height) / width, FOCAL, 0.5, 0.5];
    this.camera.fov = fovOf(lens);
    this._drawStill(width, height, lens, scene);
    context.drawImage(this.still, 0, 0, width, height);
    const space = new Space(context, width, height, this.camera.c2w, lens);
    context.lineWidth = 2;
    context.strokeStyle = context.fillStyle = this.paint.camera;
    space.chain(app.route.map((one) => position(one.c2w)));
    app.path.keyframes.forEach(({ c2w }) => space.dot(position(app.toScene(c2w)), 3.5));
    const m = app.camera.c2w;
    space.frustum(m, app.camera.lens(app.aspect), 0.3 * scene.radius);
    space.dot(position(m), 4);
  }

  /** All that does not move with the camera is drawn once and kept. */
  _drawStill(width, height, lens, scene) {
    const size = `${this.canvas.width} ${this.canvas.height} ${this.camera.c2w}`;
    if (size === this.stillOf && !this.stale) return;
    Object.assign(this, { stillOf: size, stale: false, targets: [] });
    Object.assign(this.still, { width: this.canvas.width, height: this.canvas.height });
    const names = ["accent", "faint", "bounds", "grid", "camera"];
    this.paint = Object.fromEntries(names.map((name) => [name, color(this.element, `--nvs-${name}`)]));
    const context = this.still.getContext("2d");
    context.setTransform(this.canvas.width / width, 0, 0, this.canvas.height / height, 0, 0);
    const space = new Space(context, width, height, this.camera.c2w, lens);
    context.lineWidth = 1;
    context.strokeStyle = this.paint.grid;
    floor(space, scene);
    context.strokeStyle = this.paint.bounds;
    space.box(boundsOf(scene));
    this._drawPhotos(space, scene, this.paint);
  }

  _drawPhotos(space, scene, paint) {
    const photos = scene.photos.map((photo) => ({ photo, depth: space.point(position(photo.c2w))[2] }));
    photos.sort((a, b) => b.depth - a.depth);
    for (const { photo, depth } of photos) {
      const isInput = photo.role === "input";
      space.context.strokeStyle = isInput ? paint.accent : paint.faint;
      space.context.lineWidth = isInput ? 2 : 1;
      const size = (isInput ? 0.26 : 0.13) * scene.radius;
      const base = space.frustum(photo.c2w, photo.lens, size, app.thumbs?.get(photo.i));
      if (depth > 0) this.targets.push({ photo, tip: space.point(position(photo.c2w)), base });
    }
  }

  _tap(x, y) {
    const photo = this._photoAt(((x + 1) / 2) * this.canvas.clientWidth, ((y + 1) / 2) * this.canvas.clientHeight);
    if (photo) app.flyToPhoto(photo.i);
  }

  /** Tell which photo is under the pointer. */
  _point(event) {
    const photo = event.buttons ? null : this._photoAt(event.offsetX, event.offsetY);
    this.element.classList.toggle("nvs-over", Boolean(photo));
    this.element.title = photo ? `Go to photo ${photo.i}, ${photo.name}` : "";
  }

  /** The photo at a place, or the nearest one within reach of a finger. */
  _photoAt(x, y) {
    const away = ({ tip, base }) => {
      const middle = [0, 1].map((k) => base.reduce((sum, corner) => sum + corner[k], 0) / 4);
      return Math.min(Math.hypot(x - middle[0], y - middle[1]), Math.hypot(x - tip[0], y - tip[1]));
    };
    const hit = [...this.targets].reverse().find((one) => inside([x, y], one.base));
    const near = hit ?? this.targets.reduce((best, one) => (!best || away(one) < away(best) ? one : best), null);
    return near && (hit || away(near) < 20) ? near.photo : null;
  }
}

function lookAt(place, goal, up) {
  const forward = unit(sub(goal, place));
  const right = unit(cross(forward, up));
  return pose(right, cross(forward, right), forward, place);
}

/** A grid below what the photos look at. */
function floor(space, scene) {
  const [first, second] = basis(scene.up);
  const base = add(scene.centre, scale(scene.up, -0.37 * scene.radius));
  const at = (x, y) => add(base, add(scale(first, x * scene.radius), scale(second, y * scene.radius)));
  for (let i = -4; i <= 4; i++) {
    space.line(at(i / 4, -1), at(i / 4, 1));
    space.line(at(-1, i / 4), at(1, i / 4));
  }
}

function inside([x, y], corners) {
  let isIn = false;
  corners.forEach(([x1, y1], i) => {
    const [x2, y2] = corners[(i + 1) % corners.length];
    if (y1 > y !== y2 > y && x < x1 + ((x2 - x1) * (y - y1)) / (y2 - y1)) isIn = !isIn;
  });
  return isIn;
}
