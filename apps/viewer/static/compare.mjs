// A real photo beside what the model renders for its camera.

import { app } from "./app.mjs";
import { button, make } from "./dom.mjs";
import { ordered } from "./photos.mjs";

const GAIN = 2;

export class Compare {
  constructor(root) {
    this.select = make("select", { "aria-label": "Photo to compare", onchange: () => this._choose(Number(this.select.value)) });
    this.go = button("go", "Go there", () => this.photo !== undefined && app.flyToPhoto(this.photo), { title: "Fly to this photo's camera" });
    this.photoLayer = make("canvas", { class: "nvs-compare-photo", role: "img", "aria-label": "Photo" });
    this.renderLayer = make("canvas", { role: "img", "aria-label": "Rendering" });
    this.differenceLayer = make("canvas", { role: "img", "aria-label": "Difference", hidden: true });
    this.slider = make("input", { type: "range", min: 0, max: 100, value: 50, step: 1, "aria-label": "Divide: photo on the left, rendering on the right", oninput: () => this._divide() });
    this.figure = make(
      "div",
      { class: "nvs-compare", "data-ready": "" },
      this.renderLayer,
      this.photoLayer,
      this.differenceLayer,
      make("span", { class: "nvs-divider", "aria-hidden": "true" }),
      make("span", { class: "nvs-side nvs-left" }, "Photo"),
      make("span", { class: "nvs-side nvs-right" }, "Rendering"),
      this.slider,
    );
    this.psnr = make("strong", { class: "nvs-psnr" }, "–");
    this.meaning = make("span", { class: "nvs-meaning" });
    this.difference = make("input", { type: "checkbox", onchange: () => this._showDifference() });
    this.message = make("p", { class: "nvs-hint", role: "status" });
    root.append(
      make("div", { class: "nvs-row" }, button("previous", "Previous photo", () => this._step(-1), { short: true }), this.select, button("next", "Next photo", () => this._step(1), { short: true }), this.go),
      this.figure,
      make("div", { class: "nvs-row" }, this.psnr, this.meaning, make("label", { class: "nvs-field nvs-end" }, this.difference, "Difference")),
      this.message,
    );
    app.on("scene-changed", () => this._fill());
    app.on("frame", ({ photo, full }) => full && photo !== null && photo !== undefined && photo !== this.photo && this._choose(photo));
    new IntersectionObserver((entries) => {
      this.visible = entries.at(-1).isIntersecting;
      if (this.visible && this.stale) this._load();
    }).observe(this.figure);
    this._divide();
    this._fill();
  }

  _fill() {
    const photos = ordered(app.scene).filter((photo) => photo.pixels);
    const group = (label, roles) => {
      const options = photos.filter((photo) => roles.includes(photo.role)).map((photo) => make("option", { value: photo.i }, `${photo.i}  ${photo.name}`));
      return options.length ? make("optgroup", { label }, ...options) : null;
    };
    const groups = [group("Not used", ["held-out", "unused"]), group("Used", ["input"])];
    this.select.replaceChildren(...groups.filter(Boolean));
    this.select.disabled = !photos.length;
    this.message.textContent = app.scene && !photos.length ? "A saved scene holds no photos to compare with. Open the photos themselves." : "";
    const kept = photos.find((photo) => photo.i === this.photo) ?? photos.find((photo) => photo.role !== "input") ?? photos[0];
    if (kept) this._choose(kept.i);
    else this._clear();
  }

  _clear() {
    Object.assign(this, { photo: undefined, stale: false });
    for (const canvas of [this.photoLayer, this.renderLayer, this.differenceLayer]) canvas.width = 0;
    this.meaning.textContent = "";
    this._unready();
  }

  _unready() {
    this.figure.dataset.ready = "";
    this.psnr.textContent = "–";
  }

  _choose(index) {
    const photo = app.scene?.photos.find((one) => one.i === index);
    if (!photo?.pixels) return;
    this.photo = index;
    this.select.value = index;
    this.meaning.textContent = photo.role === "input" ? "The model was given this photo." : "The model was not given this photo.";
    this.stale = true;
    this._unready();
    if (this.visible) this._load();
  }

  _step(step) {
    const values = [...this.select.options].map((option) => Number(option.value));
    if (values.length) this._choose(values[(values.indexOf(this.photo) + step + values.length) % values.length]);
  }

  /** One photo after the other; of several chosen meanwhile the last. */
  async _load() {
    if (this.loading) return;
    this.loading = true;
    while (this.visible && this.stale) await this._loadChosen();
    this.loading = false;
  }

  async _loadChosen() {
    this.stale = false;
    const [scene, index] = [app.scene, this.photo];
    const photo = scene.photos.find((one) => one.i === index);
    const [h, w] = scene.size;
    const isCurrent = () => app.scene === scene && this.photo === index && !this.stale;
    try {
      const camera = { c2w: photo.c2w, lens: photo.lens, size: [h, w], photo: index };
      const answers = [app.connection.photo(index, { h, w, scene: scene.id }), app.connection.picture(camera)];
      const pictures = await Promise.all((await Promise.all(answers)).map(async (answer) => createImageBitmap(await answer.blob())));
      if (!isCurrent()) return;
      const [real, ours] = [this.photoLayer, this.renderLayer].map((canvas, i) => paint(canvas, pictures[i]));
      this._judge(real, ours);
      this.message.textContent = "";
      this.figure.dataset.ready = index;
    } catch (error) {
      if (isCurrent()) this.message.textContent = error.message;
    }
  }

  _judge(real, ours) {
    const difference = new ImageData(real.width, real.height);
    let sum = 0;
    for (let i = 0; i < real.data.length; i++) {
      const error = Math.abs(real.data[i] - ours.data[i]);
      if (i % 4 < 3) sum += error * error;
      difference.data[i] = i % 4 < 3 ? GAIN * error : 255;
    }
    const mean = sum / (3 * real.width * real.height) / 255 ** 2;
    const psnr = mean > 0 ? -10 * Math.log10(mean) : Infinity;
    this.psnr.textContent = `${psnr.toFixed(1)} dB`;
    this.psnr.title = "PSNR, likeness to the photo: 20 dB is soft, 30 dB hard to tell apart";
    this.figure.dataset.psnr = psnr.toFixed(3);
    Object.assign(this.differenceLayer, { width: real.width, height: real.height });
    this.differenceLayer.getContext("2d").putImageData(difference, 0, 0);
    this.figure.style.setProperty("--nvs-aspect", real.width / real.height);
  }

  _divide() {
    this.figure.style.setProperty("--nvs-divide", `${this.slider.value}%`);
  }

  _showDifference() {
    this.figure.classList.toggle("nvs-difference", this.difference.checked);
    this.differenceLayer.hidden = !this.difference.checked;
    this.slider.disabled = this.difference.checked;
  }
}

/** Draw a picture into a canvas and return its pixels. */
function paint(canvas, picture) {
  Object.assign(canvas, { width: picture.width, height: picture.height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(picture, 0, 0);
  return context.getImageData(0, 0, picture.width, picture.height);
}
