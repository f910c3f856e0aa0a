"""The page of the viewer: where its parts are, and what happens when a person uses them.

The live parts (view, photos, map, compare, path) are plain JavaScript in `static/`; what takes long are Gradio events,
see `jobs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.themes import Base

from apps.viewer.api import add_endpoints
from apps.viewer.jobs import QUIET, Jobs
from apps.viewer.server import Viewer
from data import UserError

STATIC = Path(__file__).parent / "static"
MOUNT = """
const source = new URL("nvs-viewer/static/viewer.mjs", window.location.href);
import(source.href).then((viewer) => viewer.mount(element, "{part}", {{ props, trigger, server, watch }}));
// Events: "{event}"
"""
UPLOADS = ["image", "video", ".zip", ".safetensors"]
QUESTIONS = ("path_poses", "preset", "save_path", "load_path")


def look() -> dict[str, Any]:
    """How the page looks, as arguments of `launch`."""
    theme = Base(
        primary_hue="indigo",
        secondary_hue="indigo",
        neutral_hue="slate",
        radius_size="lg",
        font=["ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "Consolas", "monospace"],
    )
    return {"theme": theme, "css_paths": [STATIC / "viewer.css"], "footer_links": []}


def build_page(viewer: Viewer) -> gr.Blocks:
    """Lay out the page and connect its events to the viewer."""

    def begin(request: gr.Request) -> Any:
        return gr.update(session=viewer.session(request).id)

    def list_choices(request: gr.Request) -> Any:
        session = viewer.session(request)
        return gr.update(choices=session.choices(), value=session.scene.source if session.scene else None)

    jobs = Jobs()
    with gr.Blocks(title="nvs view", analytics_enabled=False, fill_width=True, delete_cache=(600, 3600)) as page:
        add_endpoints(viewer, page)
        gr.HTML(HEADER, elem_id="nvs-header")
        job, stop = _job_row()
        with gr.Row(elem_id="nvs-columns"):
            with gr.Column(scale=7, min_width=320):
                view = _part("view", "act", server_functions=_answerers(viewer), session="")
                _part("photos")
            with gr.Column(scale=5, min_width=320):
                _part("map")
                with gr.Tabs():
                    with gr.Tab("Scene"):
                        choice, openers = _scene_tab(viewer, jobs)
                    with gr.Tab("Compare"):
                        _part("compare")
                    with gr.Tab("Camera path"):
                        _path_tab(viewer)
        # What is asked for last wins: it ends the job before it.
        event = view.act(_actor(viewer, jobs), view, [job, stop], trigger_mode="multiple", **QUIET)
        event.then(list_choices, None, choice, **QUIET)
        for listen, handler, source in openers:
            event = listen(handler, source, [job, stop], trigger_mode="multiple", **QUIET)
            event.then(list_choices, None, choice, **QUIET)
            if isinstance(source, gr.File):  # else the next upload would come with the files of this one
                event.then(lambda: None, None, source, **QUIET)
        stop.click(jobs.stop, None, None, **QUIET)
        page.load(begin, None, view, **QUIET)
    return page


def _part(name: str, event: str = "", **more: Any) -> gr.HTML:
    """An element that JavaScript fills; it can raise one event of its own."""
    return gr.HTML(
        html_template=f'<div class="nvs-part nvs-part-{name}"></div>',
        js_on_load=MOUNT.format(part=name, event=event),
        apply_default_css=False,
        elem_id=f"nvs-{name}",
        **more,
    )


def _job_row() -> tuple[gr.HTML, gr.Button]:
    """The bar of a job and its stop button; empty while there is none."""
    with gr.Row(elem_classes="nvs-job-row"):
        bar = gr.HTML("", elem_classes="nvs-job-text")
        stop = gr.Button("Stop", visible=False, size="sm", min_width=80, scale=0)
    return bar, stop


def _scene_tab(viewer: Viewer, jobs: Jobs) -> tuple[gr.Dropdown, list[tuple[Callable, Callable, gr.Component]]]:
    """The list of scenes, and what opens scenes: for each component the event, its handler and the input."""
    choices = viewer.choices()

    def open_choice(source: str, request: gr.Request) -> Iterator:
        yield from jobs.run(viewer.session(request).open(source), request)

    def open_files(paths: list[str] | None, request: gr.Request) -> Iterator:
        yield from jobs.run(viewer.session(request).open_files(paths or []), request)

    def add_files(path: str | None, request: gr.Request) -> Iterator:
        yield from jobs.run(viewer.session(request).add_files([path] if path else []), request)

    _part("scene")
    choice = gr.Dropdown(choices, value=choices[0][1] if choices else None, label="Scenes here", elem_id="nvs-choice")
    gr.HTML(UPLOAD_TEXT, elem_classes="nvs-text")
    upload = gr.File(show_label=False, file_count="multiple", file_types=UPLOADS, height=140, elem_id="nvs-upload")
    add = gr.UploadButton("Add photos to this scene (.zip)", file_types=[".zip"], size="sm", elem_id="nvs-add")
    gr.HTML(_about(viewer.model_info), elem_id="nvs-about")
    return choice, [
        (choice.input, open_choice, choice),
        (upload.upload, open_files, upload),
        (add.upload, add_files, add),
    ]


def _path_tab(viewer: Viewer) -> None:
    jobs = Jobs()

    def export(film: dict | None, request: gr.Request) -> Iterator:
        steps = viewer.session(request).export(**_film(film))
        for bar, stop, file in jobs.run_for_file(steps, request):
            is_video = bool(file) and file.endswith(".mp4")
            video = gr.update(value=file if is_video else None, visible=is_video)
            yield bar, stop, video, gr.update(value=file, visible=bool(file))

    path = _part("path", "export")
    bar, stop = _job_row()
    video = gr.Video(
        visible=False, height=300, show_label=False, autoplay=True, loop=True, elem_id="nvs-video", buttons=[]
    )
    download = gr.DownloadButton("Save film", visible=False, variant="primary", elem_id="nvs-film-file")
    path.export(export, path, [bar, stop, video, download], **QUIET)
    stop.click(jobs.stop, None, None, **QUIET)


def _film(film: dict | None) -> dict[str, Any]:
    if not isinstance(film, dict) or not {"path", "kind", "size", "fps"} <= film.keys():
        raise UserError("There is no camera path yet: add two keyframes.")
    return {name: film[name] for name in ("path", "kind", "size", "fps")}


def _actor(viewer: Viewer, jobs: Jobs) -> Callable:
    """The handler of what is done in the view: opening a scene, and choosing its photos."""

    def act(request_from_page: dict | None, request: gr.Request) -> Iterator:
        yield from jobs.run(_act(viewer, request_from_page or {}, request), request)

    return act


def _act(viewer: Viewer, wish: dict, request: gr.Request) -> Iterator:
    session = viewer.session(request)
    if wish.get("action") == "open":
        choices = viewer.choices()
        source = wish.get("source") or (choices[0][1] if choices else None)
        if source is None:
            return
        yield from session.open(str(source))
    inputs, scene = wish.get("inputs"), session.describe()
    if inputs is None or scene is None:
        return
    if wish.get("action") == "add":
        yield from session.add_photos(inputs)
        return
    now = [photo["i"] for photo in scene["photos"] if photo["role"] == "input"]
    if sorted(inputs) != sorted(now):
        yield from session.choose_inputs(inputs)


def _answerers(viewer: Viewer) -> list[Callable]:
    """What the page's JavaScript can call: for a token to connect with, and to ask about camera paths."""

    def token(session_id: str) -> dict:
        return viewer.token(session_id)

    def ask(question: dict) -> dict:
        try:
            session, name = viewer.find(question["session"]), question["name"]
            if name not in QUESTIONS:
                raise UserError(f"There is no question {name}.")
            if name == "path_poses":
                return {"poses": session.path_poses(question["path"])}
            if name == "preset":
                return {"path": session.preset(question["preset"], question["seconds"], question["fps"])}
            if name == "save_path":
                return {"text": session.save_path(question["path"])}
            return {"path": session.load_path(question["text"])}
        except UserError as error:
            return {"problem": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            return {"problem": f"The page sent something that cannot be used ({error}): reload it."}

    return [token, ask]


def _about(model: dict[str, Any]) -> str:
    """What the model was trained on, so that nobody expects more."""
    name = escape(str(model.get("name", "model")))
    if "views" not in model:
        return f"<h2>About the model</h2><p>{name}: it does not say what it was trained on.</p>"
    (fewest, most), (h, w), (low, high) = model["views"], model["image_size"], model["fov"]
    description = escape(str(model.get("description", "")).rstrip("."))
    lines = [
        description and f"{description[0].upper()}{description[1:]}.",
        f"{fewest} to {most} photos of {w} x {h} pixels, field of view {low:.0f}° to {high:.0f}°. "
        "Outside of this, pictures get worse.",
    ]
    return f"<h2>About the model: {name}</h2>" + "".join(f"<p>{line}</p>" for line in lines if line)


UPLOAD_TEXT = """
<h2>Your own photos</h2>
<p>Photos from all sides, loose or as a .zip, with or without their cameras; a video, or a saved scene.</p>
"""
HEADER = """
<h1>nvs view</h1>
<p>Walk around a scene that was photographed from a few sides. Drag the picture.</p>
"""
