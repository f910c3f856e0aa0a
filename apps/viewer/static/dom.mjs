// Small helpers for elements.

/** An element with attributes, listeners (names that begin with "on") and children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const ICONS = {
  home: "M4 11 12 4l8 7M6 9.5V20h12V9.5",
  up: "M12 20V5M6 11l6-6 6 6",
  orbit: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8M3 12c0-3 4-5 9-5s9 2 9 5-4 5-9 5-9-2-9-5",
  look: "M2 12s4-6 10-6 10 6 10 6-4 6-10 6S2 12 2 12M12 9.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5",
  plus: "M12 5v14M5 12h14",
  minus: "M5 12h14",
  cameras: "M4 8h4l2-2.5h4L16 8h4v11H4zM12 10.5a3 3 0 1 0 0 6 3 3 0 0 0 0-6",
  box: "M12 3l8 4.5v9L12 21l-8-4.5v-9zM4 7.5l8 4.5 8-4.5M12 12v9",
  shot: "M12 4v10M7.5 10 12 14.5 16.5 10M5 20h14",
  full: "M4 9V4h5M15 4h5v5M20 15v5h-5M9 20H4v-5",
  help: "M9 9a3 3 0 1 1 4.5 2.6c-1 .6-1.5 1.2-1.5 2.4M12 17.5v.5",
  play: "M7 5l12 7-12 7z",
  stop: "M7 7h10v10H7z",
  go: "M5 12h13M12 6l6 6-6 6",
  rise: "M6 15l6-6 6 6",
  sink: "M6 9l6 6 6-6",
  bin: "M5 7h14M10 7V4.5h4V7M7 7l1 13h8l1-13",
  key: "M12 4l8 8-8 8-8-8z",
  open: "M3 18V6h6l2 2.5h10V18z",
  save: "M12 4v10M7.5 10 12 14.5 16.5 10M5 20h14",
  previous: "M15 5l-7 7 7 7",
  next: "M9 5l7 7-7 7",
};

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button with an icon; the label is shown beside it, or only told to screen readers and as a tooltip. */
export function button(name, label, onclick, { short = false, title = label, ...more } = {}) {
  const text = make("span", { class: short ? "nvs-hidden" : "nvs-label" }, label);
  return make("button", { type: "button", class: "nvs-button", title, onclick, ...more }, icon(name), text);
}

/** Offer bytes as a file to save. */
export function download(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Let a canvas have one pixel per screen pixel; tells its size in CSS pixels and its context. */
export function fit(canvas) {
  const [width, height, ratio] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio];
  const size = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { width, height, context };
}

/** A colour of the theme, for canvases. */
export const color = (element, name) => getComputedStyle(element).getPropertyValue(name).trim();
