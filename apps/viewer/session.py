"""What one browser tab has open, and all that can be done with it; only the scenes in the store are shared."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from apps.viewer import films, paths, uploads
from apps.viewer.describe import describe
from apps.viewer.engine import Work
from apps.viewer.frames import read_shot
from apps.viewer.progress import Progress, Tell, step_by_step
from apps.viewer.scenes import OpenScene
from apps.viewer.workspace import Folder
from data import UserError

if TYPE_CHECKING:
    from apps.viewer.server import Viewer

UPLOADED = "upload:"
"""How the sources of uploaded scenes begin."""
Listener = Callable[[dict[str, Any]], None]
"""Takes messages for the browser, in any thread."""


class Session:
    """One browser tab, or one script.

    What takes long is a generator of its progress; closing it stops the work.
    """

    def __init__(self, viewer: Viewer, session_id: str) -> None:
        self.id = session_id
        self.viewer = viewer
        self.used_at = time.monotonic()
        self.left_at: float | None = None
        """When the last connection of its page ended; None while there is one, or never was."""
        self.had_page = False
        self.plain_requests = 0
        """Pictures asked for without a WebSocket that are under way."""
        self.closed = False
        self._scene: OpenScene | None = None
        self.lost: dict[str, Any] | None = None
        """Message and source of the scene that had to go, as long as no other is open."""
        self._listeners: list[Listener] = []
        self._results: list[Folder] = []
        self._job = threading.Lock()
        self._lock = threading.RLock()

    @property
    def scene(self) -> OpenScene | None:
        """The scene that is open."""
        return self._scene

    @property
    def connected(self) -> bool:
        """Whether a browser listens."""
        return bool(self._listeners)

    def shown(self) -> OpenScene:
        """The scene that is open; raises UserError if there is none. It counts as used now."""
        self.used_at = time.monotonic()
        scene = self._scene
        if scene is None:
            raise UserError(self.lost["message"] if self.lost else "No scene is open: choose one first.")
        self.viewer.store.find(scene.key)
        return scene

    def describe(self) -> dict[str, Any] | None:
        """The open scene as the browser is told of it."""
        return describe(self._scene) if self._scene else None

    def choices(self) -> list[tuple[str, str]]:
        """(label, source) of the scenes that this tab can open: those of the viewer, and the upload that it shows."""
        scene, known = self._scene, self.viewer.choices()
        if scene is None or scene.source in self.viewer.places:
            return known
        return [*known, (f"{scene.name} (uploaded)", scene.source)]

    def open(self, source: str, views: int | None = None) -> Iterator[Progress]:
        """Open a shipped scene or one of the command line; for an upload, take it up where another tab has left it."""
        known = self.viewer.places.get(source)
        if known is None:
            scene = self.viewer.store.find_source(source)
            if scene is None:
                raise UserError(self._explain_missing(str(source)))
            yield Progress("opening", 1, 1)
            self._show(scene, "opened")
            return
        yield from self._change("opened", lambda tell: self.viewer.opener.open_place(known, source, views, tell))

    def open_files(self, files: Sequence[str]) -> Iterator[Progress]:
        """Open an upload: a .zip of a capture or of photos, a saved scene state, photos, or a video."""
        places, limits, opener = [Path(f) for f in files], self.viewer.limits, self.viewer.opener
        kind = uploads.kind_of(places, limits)
        source = f"{UPLOADED}{secrets.token_urlsafe(12)}"

        def work(tell: Tell) -> OpenScene:
            if kind == "state":
                return opener.read_state(places[0], source, tell)
            with self.viewer.workspace.folder().kept_on_success() as folder:
                return opener.encode(opener.find_upload(places, kind, folder, source, tell), None, None, tell)

        yield from self._change("opened", work)

    def choose_inputs(self, indices: Sequence[int]) -> Iterator[Progress]:
        """Encode again, from these photos of the open capture."""
        scene, chosen = self.shown(), self._photo_numbers(indices)
        yield from self._change("encoded", lambda tell: self.viewer.opener.encode_again(scene, chosen, tell))

    def add_photos(self, indices: Sequence[int]) -> Iterator[Progress]:
        """Let the model absorb further photos of the open capture, without reading the earlier ones again."""
        scene, chosen = self.shown(), self._photo_numbers(indices)
        yield from self._change("extended", lambda tell: self.viewer.opener.extend(scene, chosen, tell))

    def add_files(self, files: Sequence[str]) -> Iterator[Progress]:
        """Let the model absorb the photos of an uploaded .zip whose cameras are in the world of the open scene."""
        scene, places = self.shown(), [Path(f) for f in files]
        if uploads.kind_of(places, self.viewer.limits) != "zip":
            raise UserError(
                "Only photos with cameras can be added to an open scene: upload a .zip of a capture in the same world. "
                "Photos without cameras: upload all of them together as a new scene."
            )

        def work(tell: Tell) -> OpenScene:
            with self.viewer.workspace.folder().kept_on_success() as folder:
                found = self.viewer.opener.find_upload(places, "capture", folder, scene.source, tell)
                return self.viewer.opener.extend_by_upload(scene, found, tell)

        yield from self._change("extended", work)

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            self.closed = True
            if self._scene is not None:
                self.viewer.store.release(self._scene.key, self.id)
            self._scene = None
            self._results.clear()
        self.tell({"t": "scene", "scene": None, "why": "closed"})

    def render(self, camera: dict[str, Any], size: tuple[int, int] | None = None) -> Image.Image:
        """The exact picture that a camera sees, at one of the scene's sizes."""
        scene = self.shown()
        shot = read_shot({**camera, "size": size or camera.get("size")}, scene.full_sizes)
        pixels = self.viewer.engine.run(lambda: scene.picture(shot, shot.size or scene.size), Work.THUMBNAIL)
        return Image.fromarray(pixels)

    def thumbnails(self) -> list[tuple[Image.Image, str]]:
        """A small picture and the name of each photo."""
        scene = self.shown()
        described = describe(scene)
        return [(scene.thumbnail(photo["i"]), photo["name"]) for photo in described["photos"]]

    def state_file(self) -> str:
        """Write the scene state, as `nvs encode` does; returns the path."""
        scene = self.shown()
        place = self._result_folder().path / f"{_plain_name(scene.name)}.safetensors"
        scene.state.save(place)
        return str(place)

    def path_poses(self, path: dict[str, Any]) -> list[dict[str, Any]]:
        """Every camera of a path: those that a film of it shows."""
        scene = self.shown()
        content = paths.to_file_content(path, scene, self.viewer.limits)
        return paths.poses(paths.film_cameras(content, scene)[0])

    def preset(self, name: str, seconds: float = 4.0, fps: float = 24.0) -> dict[str, Any]:
        """A path that is ready to use: "orbit" or "spiral"."""
        return paths.preset(name, self.shown(), seconds, fps)

    def save_path(self, path: dict[str, Any]) -> str:
        """The path as JSON that `nvs render --trajectory` takes."""
        return json.dumps(paths.to_file_content(path, self.shown(), self.viewer.limits), indent=1) + "\n"

    def load_path(self, text: str) -> dict[str, Any]:
        """The path of such a file, or of nerfstudio's."""
        return paths.from_text(text, self.shown(), self.viewer.limits)

    def export(self, path: dict[str, Any], kind: str, size: Sequence[int], fps: float) -> Iterator[Progress]:
        """Make a film of a path: mp4, gif, or a .zip of png pictures; the last progress names the file."""
        scene, limits = self.shown(), self.viewer.limits
        content = paths.to_file_content({**path, "fps": fps}, scene, limits)
        checked = paths.size_of_film(size, limits)
        folder = self._result_folder()
        yield from films.make_film(scene, self.viewer.engine, content, kind, checked, folder.path)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of every change; returns what ends that."""
        with self._lock:
            self._listeners.append(listener)
            self.had_page, self.left_at = True, None

        def stop() -> None:
            with self._lock:
                self._listeners = [known for known in self._listeners if known is not listener]
                self.left_at = None if self._listeners else time.monotonic()

        return stop

    def called(self) -> None:
        """A page without a live connection has asked for news; it has left when it asks no more."""
        with self._lock:
            self.had_page = True
            if not self._listeners:
                self.left_at = time.monotonic()

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message to all that listen."""
        for listener in list(self._listeners):
            listener(message)

    def lose(self, scene: OpenScene) -> None:
        """The store had no room for this scene any more."""
        with self._lock:
            if self._scene is None or self._scene.key != scene.key:
                return
            self._scene = None
            can_open = scene.source in self.viewer.places
            message = (
                f"{scene.name} was removed from memory to make room for other scenes: "
                f"{'open' if can_open else 'upload'} it again."
            )
            lost = self.lost = {"message": message, "source": scene.source if can_open else None}
        self.tell({"t": "scene", "scene": None, "why": "evicted", **lost})

    def _change(self, why: str, work: Callable[[Tell], OpenScene]) -> Generator[Progress, None, None]:
        """Make a new scene step by step, and show it at the end."""
        if not self._job.acquire(timeout=30):
            raise UserError("The last request for this scene is still being worked on: wait for it, or stop it.")
        try:
            scene = yield from step_by_step(work)
            self._show(scene, why)
        except UserError as error:
            # People in a browser are not told where on the server their files lie.
            root = str(self.viewer.workspace.root)
            raise UserError(" ".join(_without_folder(word, root) for word in str(error).split(" "))) from None
        finally:
            self._job.release()

    def _show(self, scene: OpenScene, why: str) -> None:
        # Others may lose their scenes by this and be told, so that no lock may be held.
        kept = self.viewer.store.keep(scene, self.id)
        with self._lock:
            closed = self.closed
            unwanted = kept if closed else self._scene
            if not closed:
                self._scene, self.lost = kept, None
        if unwanted is not None and (closed or unwanted.key != kept.key):
            self.viewer.store.release(unwanted.key, self.id)
        if closed:
            return
        self.tell({"t": "scene", "scene": describe(kept), "why": why})
        if self.viewer.store.find(kept.key) is None:  # somebody needed the room in the meantime
            self.lose(kept)

    def _explain_missing(self, source: str) -> str:
        if source.startswith(UPLOADED):
            return "This scene is not in memory any more: upload it again, or choose another one."
        return f"There is no scene {source[:80]!r} here. There are {', '.join(self.viewer.places) or 'none'}."

    def _photo_numbers(self, indices: Sequence[int]) -> list[int]:
        """Numbers of photos from someone who may send anything."""
        capture = self.shown().capture
        count = len(capture) if capture else 0
        if not isinstance(indices, list | tuple) or len(indices) > self.viewer.limits.photos:
            raise UserError("Name the photos by a list of their numbers.")
        wrong = [i for i in indices if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < count]
        if wrong:
            raise UserError(f"There is no photo number {wrong[0]}: this scene has {count} photos, counted from 0.")
        return list(indices)

    def _result_folder(self) -> Folder:
        """A new folder for one result; the last few are kept, and those that are being written."""
        folder = self.viewer.workspace.folder()
        with self._lock:
            self._results = [*self._results[-3:], folder]
        return folder


def _plain_name(name: str) -> str:
    return "".join(c for c in name if c.isalnum() or c in "-_") or "scene"


def _without_folder(word: str, root: str) -> str:
    return Path(word).name if word.startswith(root) else word
