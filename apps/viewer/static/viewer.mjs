// Puts the parts of the page into the elements that the server laid out.

import { app } from "./app.mjs";
import { Compare } from "./compare.mjs";
import { Map3D } from "./map.mjs";
import { Path } from "./path.mjs";
import { Photos } from "./photos.mjs";
import { SceneCard } from "./scene.mjs";
import { View } from "./view.mjs";

/** Called once for each element; `gradio` has props, trigger, server and watch of the component around it. */
export function mount(element, part, gradio) {
  const root = element.querySelector(".nvs-part");
  if (!root || root.dataset.mounted) return;
  root.dataset.mounted = "true";
  parts[part](root, gradio);
}

/** What went wrong stays to be read until somebody closes it. */
document.addEventListener("click", ({ target }) => target.closest(".nvs-job-close")?.closest(".nvs-job").remove());

/** Works from the start, also while its panel has not been looked at yet. */
const path = new Path();

const parts = {
  view: (root, gradio) => {
    new View(root);
    const bridge = {
      token: (session) => gradio.server.token(session),
      ask: (question) => gradio.server.ask(question),
      act: (action, data) => {
        gradio.props.value = { action, ...data };
        gradio.trigger("act");
      },
    };
    app.on("reopen", (kept) => bridge.act("open", { source: kept?.source ?? null, inputs: kept?.inputs ?? null }));
    const begin = () => gradio.props.session && app.start(gradio.props.session, bridge);
    gradio.watch("session", begin);
    begin();
  },
  photos: (root) => new Photos(root),
  map: (root) => new Map3D(root),
  compare: (root) => new Compare(root),
  scene: (root) => new SceneCard(root),
  path: (root, gradio) => {
    root.append(path.root);
    path.makeFilm = (film) => {
      gradio.props.value = film;
      gradio.trigger("export");
    };
  },
};
