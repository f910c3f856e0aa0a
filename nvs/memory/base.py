"""What all memory layers have in common: their settings and their three verbs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, Protocol, get_args, get_origin, get_type_hints

import torch
from jaxtyping import Float
from torch import Tensor

from nvs.memory.frames import RayFrames

State = Any
"""A NamedTuple of tensors, each with the scenes as first axis."""
FIRST = {"kind", "head_dim", "expansion", "base_lr", "newton_schulz_steps", "newton_schulz_dtype"}
"""Settings that memory layers had from the start."""
SPEED = {"form", "chunk"}
"""Settings that change how a result is computed, not the result."""


class Grid(NamedTuple):
    """Where tokens come from: rows and columns of patches in a view, and their rays if a layer wants to know them."""

    rows: int
    columns: int
    frames: RayFrames | None = None


@dataclass(frozen=True)
class MemoryConfig:
    """Settings of a memory layer; every layer has a class of its own with more of them."""

    kind: str
    """Which memory layer this is."""
    head_dim: int
    """Width of one head; the model's width must be a multiple."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        self.check_whole("head_dim")
        for name, hint in get_type_hints(type(self)).items():
            value, known = getattr(self, name), get_args(hint)
            if get_origin(hint) is Literal and value not in known:
                raise ValueError(f"memory {name} must be one of {', '.join(map(str, known))}, got {value}")

    def check_whole(self, *names: str, least: int = 1) -> None:
        """Refuse settings that are not whole numbers of `least` or more."""
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"memory {name} must be a whole number of {least} or more, got {value}")

    def identity(self) -> dict[str, Any]:
        """The settings by which models are told apart.

        Settings that came after the first scene states were saved count only where they differ from their default, and
        those that only speed depends on never do: so these states still fit their models.
        """
        named = {f.name: (getattr(self, f.name), f.default) for f in fields(self) if f.name not in SPEED}
        return {name: value for name, (value, default) in named.items() if name in FIRST or value != default}

    @property
    def wants_rays(self) -> bool:
        """Whether the layer must be told the rays of tokens."""
        return getattr(self, "ray_frames", False)

    def check_ray_frames(self) -> None:
        """Refuse heads that cannot be cut into homogeneous coordinates."""
        if self.wants_rays and self.head_dim % 4:
            raise ValueError(f"memory ray_frames needs a head_dim that is a multiple of 4, got {self.head_dim}")

    def heads(self, dim: int) -> int:
        """Number of heads in a model of width `dim`."""
        if dim % self.head_dim:
            raise ValueError(f"model width {dim} is not a multiple of the memory's head_dim {self.head_dim}")
        return dim // self.head_dim


class MemoryLayer(Protocol):
    """Absorbs tokens of input views into a state of fixed size and reads that state for any token."""

    @property
    def order_matters(self) -> bool:
        """Whether the order of the tokens of an update changes the state."""
        ...

    @property
    def whole_views(self) -> bool:
        """Whether tokens must come as whole views, because neighbours within a view are mixed."""
        ...

    def init_state(self, batch: int) -> State:
        """The learned state of `batch` scenes that have seen nothing."""
        ...

    def update_state(
        self, state: State, x: Float[Tensor, "b n d"], slice_tokens: int | None = None, grid: Grid | None = None
    ) -> State:
        """Absorb one chunk of tokens; `slice_tokens` bounds the memory used and does not change the result.

        `grid` tells where the tokens come from.
        """
        ...

    def apply_state(self, state: State, x: Float[Tensor, "b n d"], grid: Grid | None = None) -> Float[Tensor, "b n d"]:
        """Read the state for each token."""
        ...


def split_tokens(
    x: Float[Tensor, "b n d"], size: int, grid: Grid | None
) -> list[tuple[Float[Tensor, "b _ d"], Grid | None]]:
    """Slices of `size` tokens, each with what `grid` says of them."""
    parts = x.split(size, dim=1)
    if grid is None or grid.frames is None:
        return [(part, grid) for part in parts]
    poses = zip(*(frames.split(size, dim=1) for frames in grid.frames), strict=True)
    return [(part, grid._replace(frames=RayFrames(*own))) for part, own in zip(parts, poses, strict=True)]


def known_rays(grid: Grid | None) -> RayFrames:
    """The rays of tokens, for a layer that cannot do without; ValueError where they were not given."""
    if grid is None or grid.frames is None:
        raise ValueError("memory ray_frames needs the rays of all tokens: give a grid with frames")
    return grid.frames


def scan(
    memory: MemoryLayer, state: State, x: Float[Tensor, "b n d"], chunk: int, grid: Grid | None = None
) -> tuple[State, Float[Tensor, "b n d"]]:
    """Absorb chunks of `chunk` tokens one after the other, and read each chunk right after it was absorbed.

    A layer that knows a faster way than this definition has a method `scan`.
    """
    own = getattr(memory, "scan", None)
    if own is not None:
        return own(state, x, chunk, grid)
    return scan_one_by_one(memory, state, x, chunk, grid)


def scan_one_by_one(
    memory: MemoryLayer, state: State, x: Float[Tensor, "b n d"], chunk: int, grid: Grid | None = None
) -> tuple[State, Float[Tensor, "b n d"]]:
    """The definition of `scan`."""
    done = [x[:, :0]]
    for part, place in split_tokens(x, chunk, grid):
        state = memory.update_state(state, part, grid=place)
        done.append(memory.apply_state(state, part, grid=place))
    return state, torch.cat(done, dim=1)
