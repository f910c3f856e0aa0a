// The list of keys and gestures.

import { make } from "./dom.mjs";

const LINES = [
  ["Drag", "turn the scene"],
  ["Right drag, two fingers", "shift"],
  ["Wheel, pinch", "nearer and farther"],
  ["Double click, double tap", "make this the middle"],
  ["← → ↑ ↓", "turn; with Shift, shift"],
  ["+  −", "nearer, farther"],
  ["W A S D, Q E", "fly; with Shift, faster"],
  ["1 … 9", "go to the first … ninth photo of the strip"],
  ["[  ]", "previous, next photo"],
  ["R", "reset the view"],
  ["U", "set the up direction"],
  ["L", "look around instead of turning the scene"],
  ["C, B", "show cameras, bounds"],
  ["K", "add a keyframe"],
  ["Space", "play or stop the path"],
  ["P", "save the picture"],
  ["F", "full screen"],
  ["?", "this list"],
];

export function showHelp() {
  const before = document.activeElement;
  const close = make("button", { type: "button", class: "nvs-button", onclick: () => dialog.close() }, "Close");
  const rows = LINES.map(([keys, does]) => [make("dt", {}, keys), make("dd", {}, does)]);
  const dialog = make(
    "dialog",
    { class: "nvs-help", "aria-label": "Keys and gestures" },
    make("h2", {}, "Keys and gestures"),
    make("dl", {}, ...rows),
    make("p", {}, "Photos are numbered from 0, as nvs inspect and --input-views count them."),
    make("p", {}, "Keys work while the view has the focus: click it, or reach it with Tab."),
    close,
  );
  dialog.addEventListener("close", () => {
    dialog.remove();
    before?.focus?.({ preventScroll: true });
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}
