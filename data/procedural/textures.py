"""Solid textures: colours from noise at several scales, stripes, rings, checks, patches, spots, gradients, pictures.

A pattern turns a point into a number in 0..4, and that into a colour: 0, 1, 2, 3 are the four colours of the palette,
with blends between them, and 4 is the first again.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from data.procedural.pictures import PictureAtlas
from data.procedural.scene import Pattern, SceneTables
from data.procedural.shapes import Vec, dot, step, vec
from data.procedural.tracing import groups, take, transform

NOISE_SIZE = 64
NOISE_PERIOD = 8.0
"""Pattern units after which the noise repeats."""


def texture_colors(
    tables: SceneTables, shape: Int[Tensor, " r"], local: Vec, normal: Vec, atlas: PictureAtlas | None, spacing: Tensor
) -> Vec:
    """Linear colours of rows of surface points, given with their normals in the coordinates of their shapes.

    `spacing` [r 1] is the distance of neighbouring rays in world units.
    """
    point = transform(tables.to_pattern[shape], local, 1)
    warp, sharpness, grain, _ = tables.surface[shape].split(1, 1)
    noise = noise_at(point)
    value = torch.zeros_like(point[0])
    kinds = groups(tables.pattern[shape], len(Pattern))
    for key, rows in enumerate(kinds[: Pattern.PICTURE]):
        if len(rows):
            found = pattern_value(Pattern(key), take(point, rows), noise.index_select(0, rows), warp[rows])
            value.index_copy_(0, rows, sharpen(found, sharpness[rows]))
    colors = blend(value, tables.palette[shape])
    rows = kinds[Pattern.PICTURE]
    if len(rows) and atlas is not None:
        apart = spacing[rows] * tables.density[shape[rows], None]
        pixels = atlas.look_up(tables.picture[shape[rows]], take(point, rows), take(normal, rows), apart)
        colors = vec(c.index_copy(0, rows, new) for c, new in zip(colors, pixels, strict=True))
    brightness = 1 - grain * noise_at(vec(c * 3.7 + 11.3 for c in point))
    return vec(c * brightness for c in colors)


def pattern_value(pattern: Pattern, p: Vec, noise: Tensor, warp: Tensor) -> Tensor:
    """The number in 0..4 that chooses the colour at points in pattern units; `noise` there is in 0..1."""
    x, y, z = p
    if pattern == Pattern.NOISE:
        return noise * 3.5
    if pattern == Pattern.GRADIENT:
        return (z + warp * (noise - 0.5)).clamp(-1, 1) * 1.5 + 1.5
    if pattern == Pattern.STRIPES:
        return _cycle(x + warp * noise)
    if pattern == Pattern.RINGS:
        return _cycle((x * x + y * y + z * z * 0.25).sqrt() + warp * noise)
    bend = warp * noise
    cells = [(c + bend).floor() for c in p]
    if pattern == Pattern.CHECKS:
        total = cells[0] + cells[1] + cells[2]
        return total - (total / 2).floor() * 2
    code = hash_cells(*(c.to(torch.int32) for c in cells))
    if pattern == Pattern.PATCHES:
        return (code & 3).to(x.dtype)
    places = vec(((code >> bits) & 15).to(x.dtype) / 15 * 0.3 + 0.35 for bits in (2, 6, 10))
    away = vec(c + bend - cell - place for c, cell, place in zip(p, cells, places, strict=True))
    return step(0.34 - dot(away, away).sqrt()) * ((code & 1) + 1).to(x.dtype)


def sharpen(value: Tensor, sharpness: Tensor) -> Tensor:
    """Draw colours together around whole numbers; 1 leaves them as they are."""
    whole = value.floor()
    return whole + ((value - whole - 0.5) * sharpness + 0.5).clamp(0, 1)


def blend(value: Tensor, palette: Float[Tensor, "r 4 3"]) -> Vec:
    """Colours of numbers in 0..4, by tents around 0, 1, 2, 3 and, the first colour again, 4."""
    tents = [(1 - (value - k).abs()).clamp_min(0) for k in range(5)]
    tents[0] = tents[0] + tents[4]
    parts = palette[..., None].unbind(1)
    return vec(sum((tents[k] * parts[k][:, i] for k in (1, 2, 3)), tents[0] * parts[0][:, i]) for i in range(3))


def noise_at(p: Vec) -> Tensor:
    """Noise with four octaves, evenly spread over 0..1, at points in pattern units."""
    volume = noise_volume(p[0].device)
    low, high, part = [], [], []
    for c, pitch in zip(p, (NOISE_SIZE * NOISE_SIZE, NOISE_SIZE, 1), strict=True):
        c = c * (NOISE_SIZE / NOISE_PERIOD)
        whole = c.floor()
        cell = whole.to(torch.int32)
        low.append((cell & (NOISE_SIZE - 1)) * pitch)
        high.append(((cell + 1) & (NOISE_SIZE - 1)) * pitch)
        part.append(c - whole)

    def at(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return volume.index_select(0, (x + y + z).view(-1)).view_as(p[0])

    def line(x: Tensor, y: Tensor) -> Tensor:
        return torch.lerp(at(x, y, low[2]), at(x, y, high[2]), part[2])

    def face(x: Tensor) -> Tensor:
        return torch.lerp(line(x, low[1]), line(x, high[1]), part[1])

    return torch.lerp(face(low[0]), face(high[0]), part[0])


@lru_cache
def noise_volume(device: torch.device) -> Float[Tensor, " voxels"]:
    """A periodic cube of noise: random lattices of 8, 16, 32 and 64, each half as strong as the one before."""
    rng = np.random.default_rng(64)
    total = np.zeros((NOISE_SIZE,) * 3)
    for octave, lattice in enumerate((8, 16, 32, 64)):
        values = rng.normal(size=(lattice,) * 3)
        for axis in range(3):
            values = _refine(values, NOISE_SIZE // lattice, axis)
        total += values / values.std() * 0.5**octave
    ranks = np.empty(total.size)
    ranks[total.reshape(-1).argsort(kind="stable")] = np.arange(total.size)
    return torch.from_numpy(((ranks + 0.5) / total.size).astype(np.float32)).to(device)


def _refine(values: np.ndarray, factor: int, axis: int) -> np.ndarray:
    """Cubic B-spline through a periodic lattice along one axis, at `factor` places a cell."""
    rolled = [np.roll(values, -shift, axis) for shift in range(-1, 3)]
    finer = []
    for f in np.arange(factor) / factor:
        weights = ((1 - f) ** 3, 3 * f**3 - 6 * f**2 + 4, -3 * f**3 + 3 * f**2 + 3 * f + 1, f**3)
        finer.append(sum(w * v for w, v in zip(weights, rolled, strict=True)))
    joined = np.stack(finer, axis + 1)
    return joined.reshape((*values.shape[:axis], -1, *values.shape[axis + 1 :]))


def _cycle(value: Tensor) -> Tensor:
    """The remainder after division by 4."""
    return value - (value / 4).floor() * 4


def hash_cells(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """Whole numbers of 16 bits that look random, from those of a cell."""
    code = (x * 73856093) ^ (y * 19349663) ^ (z * 83492791)
    code = (code ^ (code >> 13)) * 1274126177
    return (code >> 15) & 0xFFFF
