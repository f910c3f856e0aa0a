"""From a capture, photos or a saved state to a scene that can be shown."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from apps.encode import DEFAULT_VIEWS
from apps.viewer import uploads
from apps.viewer.engine import Engine
from apps.viewer.progress import Tell
from apps.viewer.scenes import OpenScene, SceneStore
from apps.viewer.sizes import LARGEST, Size
from apps.viewer.workspace import Folder, Limits
from data import PhotoCache, PhotoSceneConfig, Scene, UserError, Views, open_scene, write_photo_scene
from nvs import LaCT, SceneState
from nvs.evaluation import choose_image_size
from nvs.interpolation import check_cameras
from nvs.tokens import check_patches

SFM_CONFIG = PhotoSceneConfig(max_size=1024, frames=40)
SLICE_TOKENS = 8192
"""Bounds the memory of encoding, however many photos somebody chooses; the result is the same up to rounding."""


@dataclass(frozen=True)
class Found:
    """A capture on disk, and what it is called."""

    capture: Scene
    key: str
    source: str
    folder: Folder | None = None


class Opener:
    """Opens scenes with one model; encoding takes its turn in the render thread."""

    def __init__(self, model: LaCT, engine: Engine, store: SceneStore, limits: Limits) -> None:
        self.model, self.engine, self.store, self.limits = model, engine, store, limits
        self.image_size = choose_image_size(model, None)
        self._cache = PhotoCache(limits.photo_cache_bytes)
        self._background = model.trained.background if model.trained else "white"
        self._reconstructing = threading.Lock()

    def open_place(self, path: Path, source: str, views: int | None, tell: Tell) -> OpenScene:
        """Open a capture or a state that the person who started the viewer named; `views` photos are encoded."""
        if path.suffix == ".safetensors":
            return self.read_state(path, source, tell)
        tell("opening the capture", 0, 0)
        capture = open_scene(path, background=self._background, cache=self._cache)
        return self.encode(Found(capture, _identity(capture), source), None, views, tell)

    def find_upload(self, files: Sequence[Path], kind: str, folder: Folder, source: str, tell: Tell) -> Found:
        """Open what was uploaded; photos without cameras and videos go through structure from motion first.

        Of the kind "capture" is a .zip that must tell its cameras.
        """
        tell("checking the upload", 0, 0)
        remarks: list[str] = []
        if kind in ("zip", "capture"):
            place = uploads.unpack(files[0], folder, self.limits)
        else:
            place = uploads.collect_photos(files, folder, self.limits) if kind == "photos" else files[0]
        if kind in ("photos", "video") or (kind == "zip" and uploads.are_plain_photos(place, self.limits)):
            photos, place = place, folder.path / "capture"
            remarks = self._reconstruct(photos, place, tell)
        capture = open_scene(place, background=self._background, cache=self._cache, inside=folder.path)
        uploads.check_photos(capture, self.limits)
        name = files[0].stem if kind != "photos" else "photos"
        capture = replace(capture, name=name, warnings=(*capture.warnings, *remarks))
        return Found(capture, uploads.digest(files), source, folder)

    def _reconstruct(self, photos: Path, place: Path, tell: Tell) -> list[str]:
        """Find cameras by structure from motion, for one person at a time; returns what is less than good about it."""
        while not self._reconstructing.acquire(timeout=1):
            tell("waiting for the photos of somebody else", 0, 0)
        try:
            report = write_photo_scene([photos], place, SFM_CONFIG, on_step=tell)
        finally:
            self._reconstructing.release()
        return report.lines() if report.not_registered or report.unreadable or report.advice else []

    def encode(self, found: Found, inputs: Sequence[int] | None, views: int | None, tell: Tell) -> OpenScene:
        """Give a model some photos of a capture: the named ones, or a number spread over the camera positions."""
        capture, trained = found.capture, self.model.trained
        if inputs is None:
            most = trained.views[1] if trained else DEFAULT_VIEWS
            inputs, _ = capture.choose(min(views or most, len(capture.input_pool)))
        chosen = sorted(set(inputs))
        if not chosen:
            raise UserError("Choose at least one photo.")
        if len(chosen) > self.limits.photos:
            raise UserError(f"{len(chosen)} photos are too many: choose at most {self.limits.photos}.")
        key = _hash(found.key, self.image_size, chosen)
        if known := self.store.find(key):
            return known
        capture = capture.normalize(chosen, trained.normalization if trained else "focus")
        photos = self._load(capture, chosen, self.image_size, tell)
        tell(f"encoding {len(chosen)} photos", 0, 0)
        state = self.engine.run(lambda: self._encode(photos))
        return OpenScene(
            key=key,
            capture_key=found.key,
            source=found.source,
            name=capture.name,
            format=capture.format,
            model=self.model,
            state=state,
            capture=capture,
            inputs=tuple(chosen),
            held_out=tuple(i for i in _held_out(capture) if i not in set(chosen)),
            warnings=capture.warnings,
            folder=found.folder,
        )

    def encode_again(self, scene: OpenScene, inputs: Sequence[int], tell: Tell) -> OpenScene:
        """The same capture with other input photos."""
        return self.encode(_found(scene), inputs, None, tell)

    def extend(self, scene: OpenScene, more: Sequence[int], tell: Tell) -> OpenScene:
        """Let the model absorb further photos of the open capture, without the earlier ones."""
        added = [i for i in dict.fromkeys(more) if i not in set(scene.inputs)]
        if not added:
            raise UserError("These photos are used already: choose others to add.")
        capture = _found(scene).capture
        state = self._absorb(scene, self._load(capture, added, scene.size, tell), tell)
        return replace(
            scene,
            key=_hash(scene.key, "and", added),
            state=state,
            inputs=(*scene.inputs, *added),
            held_out=tuple(i for i in scene.held_out if i not in set(added)),
        )

    def extend_by_upload(self, scene: OpenScene, found: Found, tell: Tell) -> OpenScene:
        """Let the model absorb the photos of another capture whose cameras are in the same world."""
        world = scene.state.with_batch().world_to_scene[0].cpu().numpy()
        more = replace(found.capture, world_to_scene=world)
        indices = list(range(len(more)))
        state = self._absorb(scene, self._load(more, indices, scene.size, tell), tell)
        warnings = tuple(dict.fromkeys((*scene.warnings, *more.warnings)))
        extended = replace(scene, key=_hash(scene.key, "and", found.key), state=state, warnings=warnings)
        if scene.capture is None:
            return replace(extended, inputs=tuple(range(state.cameras.num_views)))
        first = len(scene.capture)
        capture = replace(scene.capture, frames=(*scene.capture.frames, *more.frames))
        return replace(
            extended,
            capture=capture,
            capture_key=_hash(scene.capture_key, "and", found.key),
            inputs=(*scene.inputs, *(first + i for i in indices)),
            folder=(scene.folder, found.folder),
        )

    def read_state(self, path: Path, source: str, tell: Tell) -> OpenScene:
        """Open a saved scene state, which may come from anyone."""
        tell("reading the scene state", 0, 0)
        state = SceneState.load(path)
        if state.batched:
            raise UserError("This file holds a batch of scenes; the viewer shows one.")
        self.model.check_state(state)
        check_patches(state.image_size, self.model.config.patch_size)
        if max(state.image_size) > LARGEST or max(state.thumbnails.shape[-2:]) > LARGEST:
            raise UserError(f"This scene state is of pictures larger than {LARGEST} pixels, which is too much to show.")
        check_cameras(state.cameras, "cameras of this scene state")
        if not torch.linalg.det(state.world_to_scene[:3, :3].double()) > 1e-12:
            raise UserError("This scene state does not say where its scene lies in the world: encode it again.")
        key = uploads.digest([path])
        weights = next(self.model.parameters())
        return OpenScene(
            key=key,
            capture_key=key,
            source=source,
            name=path.stem,
            format="scene state",
            model=self.model,
            state=state.to(weights.device),
            inputs=tuple(range(state.cameras.num_views)),
        )

    def _load(self, capture: Scene, indices: Sequence[int], size: Size, tell: Tell) -> Views:
        for done, index in enumerate(indices):
            tell("reading photos", done, len(indices))
            capture.load([index], image_size=size)
        return capture.load(indices, image_size=size).to(next(self.model.parameters()).device)

    @torch.inference_mode()
    def _encode(self, views: Views) -> SceneState:
        return self.model.encode(views, SLICE_TOKENS)

    def _absorb(self, scene: OpenScene, views: Views, tell: Tell) -> SceneState:
        tell(f"adding {views.num_views} photos", 0, 0)

        @torch.inference_mode()
        def absorb() -> SceneState:
            return self.model.extend(scene.state, views, slice_tokens=SLICE_TOKENS)

        return self.engine.run(absorb)


def _found(scene: OpenScene) -> Found:
    if scene.capture is None:
        raise UserError("This scene was opened from a saved state, which holds no photos: open the capture instead.")
    return Found(scene.capture, scene.capture_key, scene.source, scene.folder)


def _held_out(capture: Scene) -> list[int]:
    return capture.held_out or list(range(len(capture)))


def _identity(capture: Scene) -> str:
    """Identity of a capture on disk: names, sizes, times and cameras of its photos."""
    found = hashlib.sha256(str(capture.path.resolve()).encode())
    for frame in capture.frames:
        state = frame.path.stat()
        found.update(f"{frame.name} {state.st_size} {state.st_mtime_ns} {frame.intrinsics}".encode())
        found.update(frame.c2w.tobytes())
    return found.hexdigest()[:24]


def _hash(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
