"""A scene as the model remembers it: a value of fixed size that can be saved, loaded and rendered."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from data import Cameras, UserError, Views, join_cameras, write_atomic
from nvs.memory import STATE_TYPES, State

if TYPE_CHECKING:
    from nvs.model import ModelConfig

MAX_PREVIEWS = 32
"""Input cameras and thumbnails kept in a state; of more views, an even selection is kept."""
THUMBNAIL = 48
"""Longest side of a thumbnail in pixels."""
StorageType = Literal["float32", "bfloat16", "float16"]
HEADER = "nvs_scene_state"


@dataclass(frozen=True)
class SceneState:
    """What a model has absorbed of one scene, or of a batch of scenes (then every tensor has a leading batch axis)."""

    layers: tuple[State, ...]
    """One memory state per block."""
    world_to_scene: Float[Tensor, "*b 4 4"]
    """Similarity from the capture's world to the frame of the cameras (float64)."""
    cameras: Cameras
    """Input cameras in the scene's frame, at most 32 of them."""
    thumbnails: UInt8[Tensor, "*b v 3 th tw"]
    """Small pictures of these input views."""
    fingerprint: str
    """Identity of the model that made this state; empty while training."""
    num_inputs: int
    """Number of input views absorbed, also where fewer cameras are kept."""

    @staticmethod
    def of_views(layers: tuple[State, ...], views: Views, fingerprint: str) -> SceneState:
        """Bundle batched layer states with what is kept of the views that they come from."""
        batched = views.images.dim() == 5
        world = views.world_to_scene
        if world is None:
            world = torch.eye(4, dtype=torch.float64).expand(*views.images.shape[:-4], 4, 4)
        layers = layers if batched else tuple(_map(layer, lambda x: x[0]) for layer in layers)
        # A state in training is never looked at, and has no fingerprint.
        thumbnails = _thumbnails(views.images if fingerprint else views.images[..., :1, :1])
        state = SceneState(layers, world, views.cameras, thumbnails, fingerprint, views.num_views)
        return state._thin()

    @property
    def batched(self) -> bool:
        """Whether the tensors have a leading batch axis of scenes."""
        return self.world_to_scene.dim() == 3

    @property
    def image_size(self) -> tuple[int, int]:
        """Size (h, w) of the input views in pixels."""
        return self.cameras.image_size

    def __repr__(self) -> str:
        """One line: tensors of a state fill a screen and tell nothing."""
        kind = type(self.layers[0]).__name__ if self.layers else "nothing"
        return f"SceneState({len(self.layers)} x {kind}, {self.num_inputs} input views, {self.num_bytes} bytes)"

    @property
    def num_bytes(self) -> int:
        """Bytes of the memory states; they do not depend on the number of input views."""
        return sum(x.numel() * x.element_size() for layer in self.layers for x in layer)

    def with_batch(self) -> SceneState:
        """The same state with a batch axis (of one scene if it had none)."""
        if self.batched:
            return self
        return replace(
            self,
            layers=tuple(_map(layer, lambda x: x[None]) for layer in self.layers),
            world_to_scene=self.world_to_scene[None],
            cameras=self.cameras.add_batch(),
            thumbnails=self.thumbnails[None],
        )

    def joined(self, later: SceneState) -> SceneState:
        """This scene after `later` views were absorbed: later layers, cameras of both."""
        cameras = self.cameras
        if cameras.image_size != later.image_size:
            cameras = cameras.resize(later.image_size)
        thumbnails = _resize(self.thumbnails, later.thumbnails.shape[-2:])
        return replace(
            self,
            layers=later.layers,
            cameras=join_cameras([cameras, later.cameras]),
            thumbnails=torch.cat([thumbnails, later.thumbnails], dim=-4),
            num_inputs=self.num_inputs + later.num_inputs,
        )._thin()

    def to(self, *args, **kwargs) -> SceneState:
        """Move or cast the memory states as `Tensor.to` does; cameras follow to the device and stay float32."""
        layers = tuple(_map(layer, lambda x: x.to(*args, **kwargs)) for layer in self.layers)
        device = layers[0][0].device
        return replace(self, layers=layers, cameras=self.cameras.to(device), thumbnails=self.thumbnails.to(device))

    def save(self, path: str | Path, dtype: StorageType | None = None) -> None:
        """Write a safetensors file, the memory states in `dtype` (default: as they are)."""
        if dtype is not None and dtype not in get_args(StorageType):
            raise ValueError(f"unknown state dtype {dtype!r}; choose one of {', '.join(get_args(StorageType))}")
        if not self.fingerprint:
            raise UserError("a state made in training belongs to no finished model; call model.eval() and encode again")
        state = self if dtype is None else self.to(getattr(torch, dtype))
        views = state.cameras.num_views
        tensors = {
            "world_to_scene": state.world_to_scene,
            "cameras.c2w": _pad(state.cameras.c2w, -3),
            "cameras.intrinsics": _pad(state.cameras.intrinsics, -2),
            "thumbnails": _pad(state.thumbnails, -4),
        }
        for i, layer in enumerate(state.layers):
            tensors |= {f"layers.{i}.{name}": x for name, x in layer._asdict().items()}
        header = {
            "memory": type(state.layers[0]).__name__,
            "layers": len(state.layers),
            "views": views,
            "num_inputs": state.num_inputs,
            "image_size": state.image_size,
            "fingerprint": state.fingerprint,
        }
        with write_atomic(path) as temporary:
            safetensors.torch.save_file(
                {k: x.detach().cpu().contiguous() for k, x in tensors.items()}, temporary, {HEADER: json.dumps(header)}
            )

    @staticmethod
    def load(path: str | Path, device: str | torch.device = "cpu") -> SceneState:
        """Read a state that `save` wrote; raises UserError if the file is not one."""
        path = Path(path)
        if not path.is_file():
            raise UserError(f"there is no scene state at {path}; write one with `nvs encode`")
        try:
            with safetensors.safe_open(path, "pt", device=str(device)) as file:
                text = (file.metadata() or {}).get(HEADER)
                tensors = {} if text is None else {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
        except (safetensors.SafetensorError, ValueError) as error:
            raise UserError(f"{path} is not a readable scene state ({error}); encode the scene again") from error
        if text is None:
            raise UserError(f"{path} is a safetensors file but not a scene state; write one with `nvs encode`")
        try:
            return _from_file(json.loads(text), tensors)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
            raise UserError(f"{path} is a damaged scene state ({error}); encode the scene again") from error

    def _thin(self) -> SceneState:
        views = self.cameras.num_views
        if views <= MAX_PREVIEWS:
            return self
        kept = torch.linspace(0, views - 1, MAX_PREVIEWS).round().long().tolist()
        return replace(self, cameras=self.cameras.select(kept), thumbnails=self.thumbnails[..., kept, :, :, :])


def is_scene_state(path: str | Path) -> bool:
    """Whether a file is a safetensors file with a scene state's header."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            return HEADER in (file.metadata() or {})
    except (safetensors.SafetensorError, OSError, ValueError):
        return False


def fingerprint(config: ModelConfig, weights: Mapping[str, Tensor]) -> str:
    """Short identity of a configuration and its weights, the same for weights stored in float32 or bfloat16.

    Each tensor is sampled evenly in bfloat16, so it costs milliseconds and does not depend on the device.
    """
    digest = hashlib.sha256(json.dumps(config.identity(), sort_keys=True).encode())
    for name, weight in weights.items():
        flat = weight.detach().flatten()
        step = max(1, flat.numel() // 64)
        sample = flat[::step][:64].to(torch.bfloat16).float().cpu()
        digest.update(f"{name}{tuple(weight.shape)}".encode() + sample.numpy().tobytes())
    return digest.hexdigest()[:12]


def _from_file(header: dict, tensors: dict[str, Tensor]) -> SceneState:
    kind, views = STATE_TYPES[header["memory"]], int(header["views"])
    layers = tuple(
        kind(*(tensors[f"layers.{i}.{name}"] for name in kind._fields)) for i in range(int(header["layers"]))
    )
    if not layers or not 1 <= views <= min(MAX_PREVIEWS, int(header["num_inputs"])):
        raise ValueError(f"{len(layers)} layers, {views} views")
    expected = {"world_to_scene": (4, 4), "cameras.c2w": (MAX_PREVIEWS, 4, 4), "cameras.intrinsics": (MAX_PREVIEWS, 4)}
    for name, shape in expected.items():
        if tuple(tensors[name].shape[-len(shape) :]) != shape or not tensors[name].isfinite().all():
            raise ValueError(f"{name} is not {' x '.join(map(str, shape))} finite numbers")
    h, w = header["image_size"]
    cameras = Cameras(tensors["cameras.c2w"], tensors["cameras.intrinsics"], (int(h), int(w)))
    kept = list(range(views))
    return SceneState(
        layers,
        tensors["world_to_scene"].cpu(),
        cameras.select(kept),
        tensors["thumbnails"][..., kept, :, :, :],
        str(header["fingerprint"]),
        int(header["num_inputs"]),
    )


def _map(layer: State, change) -> State:
    return type(layer)(*(change(x) for x in layer))


def _thumbnails(images: Tensor) -> Tensor:
    h, w = images.shape[-2:]
    scale = THUMBNAIL / max(h, w)
    size = (max(1, round(h * scale)), max(1, round(w * scale)))
    return _resize((images.detach() * 255).round().clamp(0, 255).to(torch.uint8), size)


def _resize(images: Tensor, size: tuple[int, ...]) -> Tensor:
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    flat = F.interpolate(images.flatten(0, -4).float(), list(size), mode="bilinear", antialias=True)
    return flat.round().clamp(0, 255).to(torch.uint8).unflatten(0, images.shape[:-3])


def _pad(x: Tensor, axis: int) -> Tensor:
    """Fill the view axis with zeros, so that the size of the file does not depend on the number of views."""
    missing = MAX_PREVIEWS - x.shape[axis]
    shape = list(x.shape)
    shape[axis] = missing
    return torch.cat([x, x.new_zeros(shape)], dim=axis)
