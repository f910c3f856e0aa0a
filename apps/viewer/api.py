"""Named endpoints: all that the page does, for scripts with gradio_client. Documented in docs/viewer.md."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import gradio as gr
import gradio.events
from PIL import Image

from apps.viewer.progress import Progress
from data import UserError

if TYPE_CHECKING:
    from apps.viewer.server import Viewer

LONG: Any = {"concurrency_limit": 4, "concurrency_id": "long"}
"""Work of this kind waits in one line, so that short questions are answered meanwhile."""
LONG_ONES = ("open", "open_files", "choose_inputs", "add_photos", "add_files", "export")
F = TypeVar("F", bound=Callable[..., Any])


def add_endpoints(viewer: Viewer, page: gr.Blocks) -> None:
    """Add every public endpoint to the page that is being built; first, so that no other event takes their names."""
    for function in (*_opening(viewer), *_paths(viewer)):
        gradio.events.api(_told(function), api_name=function.__name__, **_line(function))
    with gr.Row(visible=False):
        _with_files(viewer)
    page.unload(viewer.leave)


def _opening(viewer: Viewer) -> list[Callable[..., Any]]:
    def scenes() -> list[list[str]]:
        """Label and source of every scene that can be opened by name."""
        return [list(choice) for choice in viewer.choices()]

    def open(source: str, views: int, request: gr.Request) -> dict[str, Any]:
        """Open a scene by its source, with a number of input photos (0: as many as the model was trained with)."""
        return _finish(viewer, request, viewer.session(request).open(source, views or None))

    def choose_inputs(photos: list[int], request: gr.Request) -> dict[str, Any]:
        """Encode the open scene again from these photos, by their numbers from 0."""
        return _finish(viewer, request, viewer.session(request).choose_inputs(photos))

    def add_photos(photos: list[int], request: gr.Request) -> dict[str, Any]:
        """Add further photos of the open capture to the scene, by their numbers from 0."""
        return _finish(viewer, request, viewer.session(request).add_photos(photos))

    def describe(request: gr.Request) -> dict[str, Any]:
        """The open scene: cameras, photos, sizes, hints."""
        session = viewer.session(request)
        session.shown()
        return session.describe() or {}

    def close(request: gr.Request) -> bool:
        """Let the open scene go."""
        viewer.leave(request)
        return True

    return [scenes, open, choose_inputs, add_photos, describe, close]


def _paths(viewer: Viewer) -> list[Callable[..., Any]]:
    def path_poses(path: dict[str, Any], request: gr.Request) -> list[dict[str, Any]]:
        """Every camera of a path of keyframes."""
        return viewer.session(request).path_poses(path)

    def preset(name: str, seconds: float, fps: float, request: gr.Request) -> dict[str, Any]:
        """A ready path: "orbit" or "spiral"."""
        return viewer.session(request).preset(name, seconds, fps)

    def save_path(path: dict[str, Any], request: gr.Request) -> str:
        """A path as the text of a file for `nvs render --trajectory`."""
        return viewer.session(request).save_path(path)

    def load_path(text: str, request: gr.Request) -> dict[str, Any]:
        """A path from the text of such a file."""
        return viewer.session(request).load_path(text)

    return [path_poses, preset, save_path, load_path]


def _with_files(viewer: Viewer) -> None:
    """Endpoints that take or return files; Gradio wants components for these."""
    button, files, number = gr.Button(), gr.File(file_count="multiple"), gr.Number(precision=0)
    camera, picture, file, answer = gr.JSON(), gr.Image(format="png"), gr.File(), gr.JSON()
    height, fps, kind = gr.Number(precision=0), gr.Number(), gr.Textbox()

    def open_files(uploaded: list[str], request: gr.Request) -> dict[str, Any]:
        """Open an upload: a .zip of a capture or of photos, a scene state, photos, or a video."""
        return _finish(viewer, request, viewer.session(request).open_files(uploaded or []))

    def add_files(uploaded: list[str], request: gr.Request) -> dict[str, Any]:
        """Add the photos of an uploaded .zip in the same world to the open scene."""
        return _finish(viewer, request, viewer.session(request).add_files(uploaded or []))

    def render(shot: dict[str, Any], h: int, w: int, request: gr.Request) -> Image.Image:
        """The picture that a camera sees, at a height and width that the scene lists (0: its own)."""
        return viewer.session(request).render(shot or {}, (h, w) if h and w else None)

    def export(path: dict[str, Any], form: str, h: int, w: int, rate: float, request: gr.Request) -> str:
        """A film of a path: mp4, gif, or png (a .zip of pictures)."""
        steps = viewer.session(request).export(path or {}, form, [h, w], rate)
        return deque(steps, maxlen=1)[0].file or ""

    def state(request: gr.Request) -> str:
        """The scene state as a file, as `nvs encode` writes it."""
        return viewer.session(request).state_file()

    for function, inputs, output in (
        (open_files, [files], answer),
        (add_files, [files], answer),
        (render, [camera, height, number], picture),
        (export, [camera, kind, height, number, fps], file),
        (state, [], file),
    ):
        button.click(
            _told(function), inputs, output, api_name=function.__name__, show_progress="hidden", **_line(function)
        )


def _line(function: Callable[..., Any]) -> dict[str, Any]:
    return LONG if function.__name__ in LONG_ONES else {}


def _finish(viewer: Viewer, request: gr.Request, steps: Iterator[Progress]) -> dict[str, Any]:
    """Do all the work of a generator, and describe the scene that came of it."""
    deque(steps, maxlen=0)
    return viewer.session(request).describe() or {}


def _told(function: F) -> F:
    """The function with expected failures as Gradio tells them to a script."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except UserError as error:
            raise gr.Error(str(error), print_exception=False) from error

    return run  # type: ignore[return-value]
