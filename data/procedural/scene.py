"""A procedural scene as plain values, and many of them as tensors for the tracer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from data.procedural.shapes import Kind

NO_SHAPE = -1


class Pattern(IntEnum):
    """What a texture's colours follow."""

    NOISE = 0
    STRIPES = 1
    RINGS = 2
    CHECKS = 3
    PATCHES = 4
    SPOTS = 5
    GRADIENT = 6
    PICTURE = 7


@dataclass(frozen=True)
class Texture:
    """A solid texture: four colours (linear, 0..1) laid out by a pattern in coordinates of its own."""

    pattern: Pattern
    palette: Float[np.ndarray, "4 3"]
    to_pattern: Float[np.ndarray, "3 4"]
    """From the shape's coordinates to those of the pattern, whose features are about 1 apart."""
    warp: float = 0.0
    """How far noise shifts the pattern, in its own units."""
    sharpness: float = 1.0
    """1: colours run into one another; from 10 on they are parted by edges."""
    grain: float = 0.0
    """Share (0..1) of the brightness that fine noise takes away."""
    gloss: float = 0.0
    """Strength of highlights (0..1)."""
    picture: int = 0
    """Number of the picture that a PICTURE texture shows."""
    density: float = 1.0
    """How often a picture fits into a world unit."""


@dataclass(frozen=True)
class Cut:
    """A second shape of closed form that removes a part of a shape, or keeps only what both have in common."""

    kind: Kind
    pose: Float[np.ndarray, "4 4"]
    """From its coordinates to those of the shape that it cuts."""
    removes: bool
    top: float = 0.0


@dataclass(frozen=True)
class Shape:
    """One solid with its place in the world (an affine map, which may stretch and mirror) and its texture."""

    kind: Kind
    pose: Float[np.ndarray, "4 4"]
    texture: Texture
    params: tuple[float, float] = (0.0, 0.0)
    """top (cone), tube (torus), p and q (superquadric)."""
    cut: Cut | None = None


class Light(NamedTuple):
    """`place` is a point (last number 1) or the unit direction towards a distant light (last number 0)."""

    place: Float[np.ndarray, " 4"]
    color: Float[np.ndarray, " 3"]
    softness: float
    """Radius of the light: in world units, or over the distance if it is distant."""


@dataclass(frozen=True)
class ProceduralScene:
    """Shapes and light; `sky` holds the linear colours at the horizon and overhead, or None for an empty background."""

    shapes: tuple[Shape, ...]
    lights: tuple[Light, ...]
    ambient: Float[np.ndarray, "2 3"]
    """Even light on what faces down and up."""
    sky: Float[np.ndarray, "2 3"] | None = None


class SceneTables(NamedTuple):
    """Scenes as tensors: s shapes (n = b s in a row, missing ones of kind NO_SHAPE) and l lights for each of b."""

    kind: Int[Tensor, " n"]
    params: Float[Tensor, "n 2"]
    to_local: Float[Tensor, "n 3 4"]
    reach: Float[Tensor, " n"]
    """Radius of a ball around the shape in its coordinates."""
    ball: Float[Tensor, "n 4"]
    """Middle and radius of a ball around the shape in the world."""
    cut_kind: Int[Tensor, " n"]
    cut_params: Float[Tensor, "n 2"]
    to_cut: Float[Tensor, "n 3 4"]
    cut_removes: Bool[Tensor, " n"]
    pattern: Int[Tensor, " n"]
    palette: Float[Tensor, "n 4 3"]
    to_pattern: Float[Tensor, "n 3 4"]
    surface: Float[Tensor, "n 4"]
    """Warp, sharpness, grain and gloss."""
    density: Float[Tensor, " n"]
    picture: Int[Tensor, " n"]
    light_place: Float[Tensor, "b l 4"]
    light_color: Float[Tensor, "b l 3"]
    light_sides: Float[Tensor, "b l 2 3"]
    """Two directions across each light, as long as the light is wide."""
    ambient: Float[Tensor, "b 2 3"]
    sky: Float[Tensor, "b 2 3"]
    has_sky: Float[Tensor, " b"]

    @property
    def num_scenes(self) -> int:
        """Number of scenes."""
        return len(self.sky)

    @property
    def shapes_per_scene(self) -> int:
        """Rows per scene in the tables of shapes."""
        return len(self.kind) // self.num_scenes

    @classmethod
    def stack(cls, scenes: list[ProceduralScene]) -> Self:
        """Tables of several scenes; what a scene lacks is filled up."""
        slots = max(len(s.shapes) for s in scenes)
        rows = [_shape_row(s.shapes[i] if i < len(s.shapes) else None) for s in scenes for i in range(slots)]
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        poses, reach = columns[_TO_LOCAL], columns[_TO_LOCAL + 1]
        columns[_BALL] = np.column_stack([poses[:, :3, 3], reach * np.linalg.norm(poses[:, :3, :3], 2, (1, 2))])
        for place in (_TO_LOCAL, _TO_CUT):
            columns[place] = np.linalg.inv(columns[place])[:, :3]
        lights = max(1, *(len(s.lights) for s in scenes))
        dark = Light(np.array([0.0, 0.0, 1.0, 0.0]), np.zeros(3), 0.0)
        filled = [[*s.lights, *[dark] * (lights - len(s.lights))] for s in scenes]
        per_scene = [
            np.array([[light.place for light in row] for row in filled]),
            np.array([[light.color for light in row] for row in filled]),
            np.array([[_sides(light) for light in row] for row in filled]),
            np.stack([s.ambient for s in scenes]),
            np.stack([np.zeros((2, 3)) if s.sky is None else s.sky for s in scenes]),
            np.array([float(s.sky is not None) for s in scenes]),
        ]
        return cls(*(_tensor(array) for array in [*columns, *per_scene]))

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        return type(self)(*(t.to(device) for t in self))


def bounding_radius(kind: Kind, params: tuple[float, float]) -> float:
    """Radius of a ball around a shape, in the shape's coordinates."""
    if kind == Kind.SUPERQUADRIC:
        # The largest |x, y| for p > 2 lies on the diagonal; with q > 2 full height is added at most.
        flat = 2 ** max(0.0, 0.5 - 1 / params[0])
        return flat if params[1] <= 2 else float(np.hypot(flat, 1))
    far = {Kind.BOX: 3**0.5, Kind.CYLINDER: 2**0.5, Kind.CONE: 2**0.5, Kind.HALFSPACE: 1e3}
    return far.get(kind, 1.0)


def _shape_row(shape: Shape | None) -> tuple:
    """The columns of the table for one shape, with poses in place of their inverses."""
    if shape is None:
        return _EMPTY_ROW
    texture, cut = shape.texture, shape.cut
    return (
        int(shape.kind),
        shape.params,
        shape.pose,
        bounding_radius(shape.kind, shape.params),
        (),
        NO_SHAPE if cut is None else int(cut.kind),
        (0.0 if cut is None else cut.top, 0.0),
        shape.pose if cut is None else shape.pose @ cut.pose,
        cut is not None and cut.removes,
        int(texture.pattern),
        texture.palette,
        texture.to_pattern,
        (texture.warp, texture.sharpness, texture.grain, texture.gloss),
        texture.density,
        texture.picture,
    )


def _sides(light: Light) -> np.ndarray:
    """A lamp is a level square, a distant light a square across its direction."""
    if light.place[3]:
        return np.eye(3)[:2] * 2 * light.softness
    toward = light.place[:3]
    first = np.cross(toward, np.eye(3)[np.abs(toward).argmin()])
    first = first / np.linalg.norm(first)
    return np.stack([first, np.cross(toward, first)]) * 2 * light.softness


_TO_LOCAL, _BALL, _TO_CUT = (SceneTables._fields.index(name) for name in ("to_local", "ball", "to_cut"))
_EMPTY_ROW = (
    NO_SHAPE, (0.0, 0.0), np.eye(4), 0.0, (), NO_SHAPE, (0.0, 0.0), np.eye(4), False,
    0, np.zeros((4, 3)), np.eye(4)[:3], (0.0, 1.0, 0.0, 0.0), 1.0, 0,
)  # fmt: skip


def _tensor(array: np.ndarray) -> Tensor:
    """Numbers as float32; whole numbers and truth values as they are."""
    return torch.from_numpy(array.astype(np.float32) if array.dtype.kind == "f" else array)
