"""Scenes in memory: what is needed to show one, and a store of bounded size that sessions share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image

from apps.viewer.frames import Shot
from apps.viewer.sizes import Size, allowed_sizes, full_sizes
from apps.viewer.surroundings import Surroundings
from data import Cameras, Scene, UserError, fit_normalization
from nvs import LaCT, Renderer, SceneState, TrainedRange
from nvs.metrics import psnr
from nvs.sheet import to_picture

THUMBNAIL_SIDE = 96


@dataclass(frozen=True, eq=False)
class OpenScene:
    """A scene that a model has absorbed, with the photos it came from where they are known; a value."""

    key: str
    """Identity by content: the same capture with the same input photos has the same key, in every session."""
    capture_key: str
    """Identity of the capture alone; stays the same when other photos are chosen."""
    source: str
    """What opens it again."""
    name: str
    format: str
    model: LaCT
    state: SceneState
    capture: Scene | None = None
    """The photos, in the frame of the state; None for a saved state."""
    inputs: tuple[int, ...] = ()
    """Photos that the model was given."""
    held_out: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()
    folder: Any = field(default=None, repr=False)
    """Keeps the unpacked files of an upload as long as the scene."""

    @cached_property
    def renderer(self) -> Renderer:
        """Renders one picture at a time, so that others get their turn in between."""
        return Renderer(self.model, self.state, views_per_batch=1)

    @property
    def size(self) -> Size:
        """Size (h, w) of a full picture unless another is chosen."""
        return self.state.image_size

    @property
    def sizes(self) -> list[Size]:
        """Every size that can be rendered for a preview."""
        return allowed_sizes(self.size, self.model.config.patch_size)

    @property
    def full_sizes(self) -> list[Size]:
        """Sizes to choose from for the picture at rest."""
        return full_sizes(self.size, self.model.config.patch_size)

    @property
    def trained(self) -> TrainedRange | None:
        """What the model was trained on, where that is known."""
        return self.model.trained

    @property
    def num_bytes(self) -> int:
        """Memory that this scene holds; photos are in a cache of their own."""
        return self.state.num_bytes + self.state.thumbnails.numel()

    @cached_property
    def surroundings(self) -> Surroundings:
        """Where the input cameras are: tells when another camera is far from them."""
        return Surroundings.around(self.state.cameras, self.focus, self.trained)

    @cached_property
    def focus(self) -> torch.Tensor:
        """From the frame of the cameras to one whose origin they look at and whose +z is up (4 x 4, float64)."""
        if self.trained is None or self.trained.normalization == "focus":
            return torch.eye(4, dtype=torch.float64)
        return torch.from_numpy(fit_normalization(self.state.cameras.c2w.cpu().double().numpy(), "focus"))

    def cameras(self) -> Cameras:
        """The cameras of all photos, or those that a state keeps."""
        if self.capture is None:
            return self.state.cameras.to("cpu")
        return self.capture.cameras(range(len(self.capture)), image_size=self.size)

    def picture(self, shot: Shot, size: Size) -> np.ndarray:
        """What a camera sees, as bytes (h, w, 3); only the render thread calls this."""
        return np.asarray(to_picture(next(self.renderer.frames(shot.cameras(size)))))

    def photo(self, index: int, size: Size) -> np.ndarray:
        """A photo as the model would be given it, as bytes (h, w, 3)."""
        return np.asarray(to_picture(self._capture().load([index], image_size=size).images[0]))

    def thumbnail(self, index: int) -> Image.Image:
        """A small picture of a photo."""
        if self.capture is None:
            thumbnails = self.state.with_batch().thumbnails[0]
            if not 0 <= index < len(thumbnails):
                raise UserError(f"There is no photo number {index}.")
            return Image.fromarray(thumbnails[index].permute(1, 2, 0).cpu().numpy())
        scale = THUMBNAIL_SIDE / max(self.size)
        h, w = (max(1, round(side * scale)) for side in self.size)
        return Image.fromarray(self.photo(index, (h, w)))

    def remarks(self, shot: Shot, pixels: np.ndarray) -> dict[str, Any]:
        """The PSNR against the photo at this camera, and in which ways the camera is far from what is known."""
        likeness = None
        if shot.photo is not None and self.capture is not None and shot.photo < len(self.capture):
            pair = torch.from_numpy(np.stack([pixels, self.photo(shot.photo, (pixels.shape[0], pixels.shape[1]))]))
            likeness = round(float(psnr(*(pair.permute(0, 3, 1, 2).float() / 255))), 2)
        return {"psnr": likeness, "notes": self.surroundings.notes(shot, (pixels.shape[0], pixels.shape[1]))}

    def _capture(self) -> Scene:
        if self.capture is None:
            raise UserError("This scene was opened from a saved state, which holds no photos.")
        return self.capture


class SceneStore:
    """Scenes by key, shared by the sessions that show them; the one unused longest goes when memory runs short."""

    def __init__(self, max_bytes: int, on_evicted: Callable[[str, OpenScene], None]) -> None:
        """Keep at most `max_bytes` of scenes; `on_evicted` is told (owner, scene) for each owner that loses one."""
        self.max_bytes, self._on_evicted = max_bytes, on_evicted
        self._scenes: OrderedDict[str, tuple[OpenScene, set[str]]] = OrderedDict()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """Number of scenes in memory."""
        return len(self._scenes)

    @property
    def num_bytes(self) -> int:
        """Memory that all scenes hold together."""
        with self._lock:
            return sum(scene.num_bytes for scene, _ in self._scenes.values())

    def find(self, key: str) -> OpenScene | None:
        """A scene that is in memory; it counts as used now."""
        with self._lock:
            if key not in self._scenes:
                return None
            self._scenes.move_to_end(key)
            return self._scenes[key][0]

    def find_source(self, source: str) -> OpenScene | None:
        """The scene in memory that was opened from `source`, used last if there are several."""
        with self._lock:
            found = [scene for scene, _ in self._scenes.values() if scene.source == source]
            return found[-1] if found else None

    def keep(self, scene: OpenScene, owner: str) -> OpenScene:
        """Keep a scene for an owner, and let others go if there is no room; returns the one to be shared."""
        if scene.num_bytes > self.max_bytes:
            raise UserError(
                f"This scene takes {scene.num_bytes / 2**20:.0f} MiB, but all scenes together may take "
                f"{self.max_bytes / 2**20:.0f} MiB. Start the viewer with a larger --scene-memory."
            )
        lost: list[tuple[str, OpenScene]] = []
        with self._lock:
            kept, owners = self._scenes.setdefault(scene.key, (scene, set()))
            owners.add(owner)
            self._scenes.move_to_end(scene.key)
            while self.num_bytes > self.max_bytes:
                _, (old, losers) = self._scenes.popitem(last=False)
                lost += [(loser, old) for loser in sorted(losers)]
        for loser, old in lost:
            self._on_evicted(loser, old)
        return kept

    def release(self, key: str, owner: str) -> None:
        """An owner needs a scene no more; when nobody does, it goes."""
        with self._lock:
            if key not in self._scenes:
                return
            owners = self._scenes[key][1]
            owners.discard(owner)
            if not owners:
                del self._scenes[key]
