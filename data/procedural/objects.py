"""Random objects: shapes that are scattered, grown on one another or stacked; cut, mirrored and repeated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from data.procedural.config import ProceduralConfig
from data.procedural.materials import Style, random_rotation, random_texture
from data.procedural.scene import Cut, Shape
from data.procedural.shapes import Kind

KIND_SHARES = {
    Kind.ELLIPSOID: 0.18,
    Kind.BOX: 0.22,
    Kind.CYLINDER: 0.18,
    Kind.CONE: 0.13,
    Kind.TORUS: 0.11,
    Kind.SUPERQUADRIC: 0.18,
}
CUT_SHARES = {Kind.HALFSPACE: 0.4, Kind.ELLIPSOID: 0.2, Kind.BOX: 0.2, Kind.CYLINDER: 0.2}
MOST_SHAPES = 16
"""Most shapes of an object after mirroring and repeating."""


def random_object(rng: np.random.Generator, config: ProceduralConfig, style: Style, count: int) -> list[Shape]:
    """About `count` shapes that make up one thing, of no certain place and size."""
    layout = rng.choice(["scattered", "grown", "stacked"], p=[0.3, 0.4, 0.3])
    shapes: list[Shape] = []
    materials = int(rng.integers(1, count + 1))
    for number in range(count):
        shape = _random_shape(rng, config, style, upright=layout == "stacked" or rng.uniform() < 0.35)
        if number >= materials and rng.uniform() < 0.7:
            # Parts of one thing often share a material.
            texture = shapes[number - materials].texture
            shape = replace(shape, texture=replace(texture, to_pattern=shape.texture.to_pattern))
        shapes.append(_placed(rng, layout, shape, shapes))
    if rng.uniform() < config.symmetry_share:
        shapes = _repeated(rng, shapes)
    return shapes


def _random_params(rng: np.random.Generator, kind: Kind) -> tuple[float, float]:
    """What a kind of shape has to choose: a third of the cones are pointed, superquadrics go from spiky to boxy."""
    if kind == Kind.CONE:
        return max(0.02, rng.uniform(-0.4, 0.8)), 0.0
    if kind == Kind.TORUS:
        return rng.uniform(0.15, 0.42), 0.0
    if kind == Kind.SUPERQUADRIC:
        return 8 ** rng.uniform(), 8 ** rng.uniform()
    return 0.0, 0.0


def _random_shape(rng: np.random.Generator, config: ProceduralConfig, style: Style, upright: bool) -> Shape:
    """A shape at the origin; upright ones are turned about the z axis only, or lie on a side."""
    kind = Kind(rng.choice(list(KIND_SHARES), p=list(KIND_SHARES.values())))
    size = np.exp(rng.normal(-1.0, 0.35) + rng.normal(0, 0.4, 3))
    if kind != Kind.TORUS and rng.uniform() < 0.25:
        # A stick or a plate.
        axis, stretch = rng.integers(3), rng.choice([0.3, 2.5])
        size = size * np.where(np.arange(3) == axis, stretch, 1.0)
    size = size.clip(0.06, 1.2)
    rotation = random_rotation(rng)
    if upright:
        turn = rng.uniform(0, 2 * np.pi) * rng.integers(2)
        rotation = _about_z(turn) @ np.roll(np.eye(3), rng.choice(3, p=[0.7, 0.15, 0.15]), axis=1)
    pose, params = affine(rotation * size, np.zeros(3)), _random_params(rng, kind)
    texture = random_texture(rng, style, config, size)
    cut = _random_cut(rng) if rng.uniform() < config.cut_share else None
    return Shape(kind, pose, texture, params, cut)


def _random_cut(rng: np.random.Generator) -> Cut:
    """A cut that leaves at least a third or so of a shape, in the shape's coordinates."""
    kind = Kind(rng.choice(list(CUT_SHARES), p=list(CUT_SHARES.values())))
    rotation = random_rotation(rng) if rng.uniform() < 0.6 else np.roll(np.eye(3), rng.integers(3), axis=1)
    direction = rotation[:, 2] * rng.choice([-1, 1])
    if kind == Kind.HALFSPACE:
        return Cut(kind, affine(rotation, rotation[:, 2] * rng.uniform(-0.1, 0.6)), removes=False)
    if rng.uniform() < 0.75:
        size = rng.uniform(0.35, 0.75, 3)
        if kind == Kind.CYLINDER:
            size[2] = rng.uniform(0.6, 3)
        return Cut(kind, affine(rotation * size, direction * rng.uniform(0.3, 1.0)), removes=True)
    return Cut(kind, affine(rotation * rng.uniform(0.75, 1.1, 3), direction * rng.uniform(0, 0.4)), removes=False)


def _placed(rng: np.random.Generator, layout: str, shape: Shape, others: list[Shape]) -> Shape:
    """The shape moved to where the layout wants it among the others."""
    if not others:
        return shape
    if layout == "scattered":
        return moved(shape, shift=rng.normal(size=3) * 0.27)
    if layout == "stacked":
        parent = others[-1] if rng.uniform() < 0.75 else others[rng.integers(len(others))]
        direction = np.array([0.0, 0.0, 1.0])
        overlap, beside = 0.02, np.array([*rng.normal(size=2) * 0.12, 0.0])
    else:
        parent = others[rng.integers(len(others))]
        direction = random_rotation(rng)[2]
        overlap, beside = rng.uniform(0.02, 0.2), np.zeros(3)
    center = parent.pose[:3, 3]
    reach = support([parent], direction[None])[0, 0] - center @ direction + support([shape], -direction[None])[0, 0]
    return moved(shape, shift=center + direction * reach * (1 - overlap) + beside)


def _repeated(rng: np.random.Generator, shapes: list[Shape]) -> list[Shape]:
    """Shapes away from the middle mirrored to the other side, or repeated around the z axis."""
    order = 2 if rng.uniform() < 0.7 else int(rng.integers(3, 6))
    result = []
    for shape in shapes:
        off_center = np.abs(shape.pose[:2, 3]).max() > 0.12
        copies = order if off_center and len(result) + order <= MOST_SHAPES else 1
        for k in range(copies):
            turn = np.diag([1.0 - 2 * k, 1.0, 1.0]) if order == 2 else _about_z(2 * np.pi * k / order)
            result.append(moved(shape, turn))
    return result


def slab_below(rng: np.random.Generator, config: ProceduralConfig, style: Style, shapes: list[Shape]) -> Shape:
    """A box or disc that the shapes stand on."""
    low, high = bounds(shapes)
    wide = rng.uniform(0.9, 1.2) * (high - low)[:2].max() / 2
    size = np.array([wide, wide, rng.uniform(0.02, 0.06)])
    middle = np.array([*(low[:2] + high[:2]) / 2, low[2] - size[2] + 0.01])
    kind = Kind.BOX if rng.uniform() < 0.5 else Kind.CYLINDER
    return Shape(kind, affine(np.diag(size), middle), random_texture(rng, style, config, size))


def affine(linear: Float[np.ndarray, "3 3"], shift: Float[np.ndarray, " 3"]) -> Float[np.ndarray, "4 4"]:
    """The map x -> linear x + shift."""
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = linear, shift
    return matrix


def moved(shape: Shape, linear: np.ndarray | None = None, shift: np.ndarray | float = 0.0) -> Shape:
    """The shape after the map x -> linear x + shift of the world."""
    return replace(shape, pose=affine(np.eye(3) if linear is None else linear, np.zeros(3) + shift) @ shape.pose)


def _about_z(angle: float) -> Float[np.ndarray, "3 3"]:
    """The rotation about the z axis by an angle in radians."""
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])


def bounds(shapes: list[Shape]) -> tuple[Float[np.ndarray, " 3"], Float[np.ndarray, " 3"]]:
    """Lowest and highest corner of the box around shapes, cuts left aside."""
    axes = np.eye(3)
    return -support(shapes, -axes).max(0), support(shapes, axes).max(0)


def fitted(shapes: list[Shape], radius: float) -> list[Shape]:
    """Shapes moved and scaled into a ball of this radius around the origin, cuts left aside."""
    low, high = bounds(shapes)
    center = (low + high) / 2
    extent = (support(shapes, DIRECTIONS) - DIRECTIONS @ center).max()
    scale = radius / extent
    return [moved(shape, scale * np.eye(3), -scale * center) for shape in shapes]


def support(shapes: list[Shape], directions: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "s n"]:
    """How far shapes reach in unit directions, from the origin (the support function of convex geometry)."""
    result = []
    for shape in shapes:
        x, y, z = (directions @ shape.pose[:3, :3]).T
        flat = np.hypot(x, y)
        if shape.kind == Kind.ELLIPSOID:
            reach = np.hypot(flat, z)
        elif shape.kind == Kind.BOX:
            reach = abs(x) + abs(y) + abs(z)
        elif shape.kind == Kind.CYLINDER:
            reach = flat + abs(z)
        elif shape.kind == Kind.CONE:
            reach = np.maximum(flat - z, flat * shape.params[0] + z)
        elif shape.kind == Kind.TORUS:
            tube = shape.params[0]
            reach = flat * (1 - tube) + np.hypot(flat, z) * tube
        else:
            reach = _dual_norm(_dual_norm(x, y, shape.params[0]), z, shape.params[1])
        result.append(reach + directions @ shape.pose[:3, 3])
    return np.stack(result)


def _dual_norm(a: np.ndarray, b: np.ndarray, exponent: float) -> np.ndarray:
    """The largest a x + b y where |x|^p + |y|^p <= 1: the norm with the exponent p / (p - 1)."""
    most = np.maximum(abs(a), abs(b))
    if exponent < 1.01:
        return most
    dual = exponent / (exponent - 1)
    safe = np.maximum(most, 1e-30)
    return most * ((abs(a) / safe) ** dual + (abs(b) / safe) ** dual) ** (1 / dual)


def _sphere(count: int) -> Float[np.ndarray, "n 3"]:
    """Unit directions spread evenly on a golden-angle spiral."""
    z = 1 - 2 * (np.arange(count) + 0.5) / count
    angle = np.arange(count) * np.pi * (3 - 5**0.5)
    flat = np.sqrt(1 - z * z)
    return np.stack([flat * np.cos(angle), flat * np.sin(angle), z], axis=1)


DIRECTIONS = _sphere(100)
