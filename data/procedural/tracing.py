"""Casts bundles of rays at many shapes of many scenes at once.

Rays come in rows of TILE x TILE, one row for each pair of an image tile and a shape that may lie in it. Numbers that
belong to the shape are then [r 1] against rays [r TILE*TILE], rows of one kind of shape are handled together, and there
is no loop over rays, views or scenes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from data.procedural.scene import SceneTables
from data.procedural.shapes import CLOSED_FORM, FAR, Kind, Vec, first_hit, interval, step, vec

TILE = 16
"""Rays along each side of a tile."""
RAYS_IN_CACHE = 2**17
"""On a CPU, rays of one kind of shape are handled so many at a time."""
KEEP, FRONT, BEHIND = range(3)
"""What a row looks at: what a cut keeps, or what lies before and behind a part that is cut away."""


class Tiles(NamedTuple):
    """Camera rays of v views in t tiles each (v t rows); directions reach depth 1: ray parameters are depths."""

    view: Int[Tensor, " rows"]
    origin: Vec
    direction: Vec
    corner: Vec
    """Directions through the top left corners of the tiles."""
    edges: tuple[Float[Tensor, "v 3"], Float[Tensor, "v 3"]]
    """What leads from there to the top right and the bottom left corner."""
    eye: Float[Tensor, "v 3"]
    forward: Float[Tensor, "v 3"]
    ray_angle: Float[Tensor, " v"]
    """Distance of neighbouring rays at depth 1."""
    grid: tuple[int, int]
    """Tiles down and across."""


class Hits(NamedTuple):
    """Where rows of rays enter shapes."""

    row: Int[Tensor, " r"]
    """The given row that this one looks after (a cut that removes something makes two of one)."""
    shape: Int[Tensor, " r"]
    t: Float[Tensor, "r p"]
    on_cut: Float[Tensor, "r p"]
    """1 where the surface belongs to the cut."""


def make_tiles(
    c2w: Float[Tensor, "v 4 4"], intrinsics: Float[Tensor, "v 4"], size: tuple[int, int], rays_per_side: int
) -> Tiles:
    """Rays through an even grid of `rays_per_side` squared points in each pixel of images of `size` (h, w)."""
    down, across = (-(-side * rays_per_side // TILE) for side in size)
    views, device = len(c2w), c2w.device
    fx, fy, cx, cy = (x[:, None, None] for x in intrinsics.unbind(-1))
    inside = (torch.arange(TILE, device=device) + 0.5) / rays_per_side
    column, row = (torch.arange(n, device=device) * (TILE / rays_per_side) for n in (across, down))

    def directions(x: Tensor, y: Tensor) -> Vec:
        """World directions through points [t p] of the image, as [v*t p]."""
        u, v = (x - cx) / fx, (y - cy) / fy
        m = c2w[:, :3, :3, None, None].unbind(1)
        return vec((u * a[:, 0] + v * a[:, 1] + a[:, 2]).reshape(-1, x.shape[1]) for a in m)

    left, top = column.repeat(down)[:, None], row.repeat_interleave(across)[:, None]
    x, y = left + inside.repeat(TILE), top + inside.repeat_interleave(TILE)
    edge = TILE / rays_per_side
    return Tiles(
        view=torch.arange(views, device=device).repeat_interleave(down * across),
        origin=vec(c.repeat_interleave(down * across)[:, None] for c in c2w[:, :3, 3].unbind(1)),
        direction=directions(x, y),
        corner=directions(left, top),
        edges=(c2w[:, :3, 0] * (edge / intrinsics[:, :1]), c2w[:, :3, 1] * (edge / intrinsics[:, 1:2])),
        eye=c2w[:, :3, 3],
        forward=c2w[:, :3, 2],
        ray_angle=1 / (intrinsics[:, 0] * rays_per_side),
        grid=(down, across),
    )


def cast(tables: SceneTables, shape: Int[Tensor, " r"], origin: Vec, direction: Vec, lo: float, hi: Tensor) -> Hits:
    """Where each row of rays enters its shape between `lo` and `hi` [r 1 or r p], cuts heeded."""
    part = torch.where(tables.cut_removes[shape], FRONT, KEEP)
    twice = part.nonzero()[:, 0]
    row = torch.cat([torch.arange(len(shape), device=shape.device), twice])
    part = torch.cat([part, torch.full_like(twice, BEHIND)])
    shape = shape[row]
    size = len(row), torch.broadcast_shapes(origin[0].shape[1:], direction[0].shape[1:])[0]
    low, high = torch.full(size, lo, device=shape.device), hi.index_select(0, row).expand(size).clone()

    cut_group = torch.where(tables.cut_kind[shape] < 0, len(CLOSED_FORM) * 3, tables.cut_kind[shape] * 3 + part)
    for key, rows in slices(cut_group, len(CLOSED_FORM) * 3, size[1]):
        chosen, given = shape[rows], row[rows]
        o, d = to_shape(tables.to_cut[chosen], take(origin, given), take(direction, given))
        bounds = interval(Kind(key // 3), o, d, tables.cut_params[chosen])
        low_part, high_part = low.index_select(0, rows), high.index_select(0, rows)
        low_part, high_part = _apply_cut(key % 3, *bounds, low_part, high_part)
        low.index_copy_(0, rows, low_part)
        high.index_copy_(0, rows, high_part)

    t = torch.full(size, FAR, device=shape.device)
    for key, rows in slices(tables.kind[shape], len(Kind), size[1]):
        chosen, given = shape[rows], row[rows]
        o, d = to_shape(tables.to_local[chosen], take(origin, given), take(direction, given))
        lows, highs = low.index_select(0, rows), high.index_select(0, rows)
        t.index_copy_(0, rows, first_hit(Kind(key), o, d, tables.params[chosen], lows, highs))
    on_cut = (1 - step(t - low)) * (tables.cut_kind[shape] >= 0)[:, None].to(t.dtype)
    return Hits(row, shape, t, on_cut)


def _apply_cut(part: int, near: Tensor, far: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The part of [low, high) that a cut leaves."""
    if part == KEEP:
        return torch.maximum(low, near), torch.minimum(high, far)
    met = step(far - near)
    if part == FRONT:
        return low, torch.minimum(high, torch.lerp(high, near, met))
    return torch.maximum(low, far), high * met


def nearest(hits: Hits, tile: Int[Tensor, " r"], num_tiles: int) -> tuple[Float[Tensor, "r p"], Float[Tensor, "n p"]]:
    """Masks of 1 where a row has the nearest hit of its tile (`tile` of each row), and where a ray of a tile hits."""
    order = tile.argsort(stable=True)
    counts = tile.bincount(minlength=num_tiles)
    first = counts.cumsum(0) - counts
    rank = torch.arange(len(tile), device=tile.device) - first[tile[order]]
    rays = hits.t.shape[1]
    depth = torch.full((num_tiles, rays), FAR, device=tile.device)
    owner = torch.full((num_tiles, rays), -1.0, device=tile.device)
    for layer in groups(rank, int(counts.max()) if len(tile) else 0):
        rows = order[layer]
        place = tile[rows]
        t, before = hits.t[rows], depth[place]
        closer = step(before - t)
        depth.index_copy_(0, place, torch.minimum(before, t))
        owner.index_copy_(0, place, torch.lerp(owner[place], rows[:, None].to(t.dtype).expand_as(t), closer))
    mine = 1 - (owner[tile] - torch.arange(len(tile), device=tile.device)[:, None]).abs().clamp_max(1)
    return mine, step(FAR - depth)


def shadows(
    tables: SceneTables, pairs: Bool[Tensor, "r l s"], first_shape: Int[Tensor, " r"], origin: Vec,
    to_light: tuple[Vec, ...], ends: Float[Tensor, "l r p"],
) -> Float[Tensor, "l r p"]:  # fmt: skip
    """The light (1 or 0) that reaches rows of points; `pairs` says which shapes to try, up to `ends` of the way."""
    lit = torch.ones_like(ends).flatten(0, 1)
    row, light, slot = pairs.nonzero().unbind(1)
    if len(row):
        pick = light * ends.shape[1] + row
        toward = vec(torch.cat([v[i] for v in to_light]).index_select(0, pick) for i in range(3))
        end = ends.flatten(0, 1).index_select(0, pick)
        hits = cast(tables, first_shape[row] + slot, take(origin, row), toward, 1e-3, end)
        lit.index_add_(0, pick[hits.row], step(FAR - hits.t), alpha=-1)
    return lit.clamp_min(0).view_as(ends)


def to_shape(matrix: Float[Tensor, "r 3 4"], origin: Vec, direction: Vec) -> tuple[Vec, Vec]:
    """Rays in the coordinates of a shape."""
    return transform(matrix, origin, 1), transform(matrix, direction, 0)


def transform(matrix: Float[Tensor, "r 3 4"], v: Vec, last: int) -> Vec:
    """Points (`last` 1) or directions (`last` 0), row by row."""
    m = matrix[..., None].unbind(1)
    moved = (a[:, 0] * v[0] + a[:, 3] if last else a[:, 0] * v[0] for a in m)
    return vec(torch.addcmul(torch.addcmul(s, a[:, 1], v[1]), a[:, 2], v[2]) for s, a in zip(moved, m, strict=True))


def slices(keys: Int[Tensor, " r"], count: int, rays: int) -> Iterator[tuple[int, Tensor]]:
    """Keys below `count` with their rows (of `rays` rays), on a CPU as many at a time as its cache can work with."""
    most = RAYS_IN_CACHE // rays if keys.device.type == "cpu" else max(len(keys), 1)
    for key, rows in enumerate(groups(keys, count)):
        for part in rows.split(most) if len(rows) else ():
            yield key, part


def groups(keys: Int[Tensor, " r"], count: int) -> list[Tensor]:
    """Row numbers with key 0, 1, ... below `count`, in rising order; rows with other keys are in none."""
    inside = torch.where((keys >= 0) & (keys < count), keys, count)
    order = inside.argsort(stable=True)
    return list(order.split(inside.bincount(minlength=count + 1).tolist()))[:count]


def take(v: Vec, rows: Tensor) -> Vec:
    """Some rows of all three."""
    return v[0].index_select(0, rows), v[1].index_select(0, rows), v[2].index_select(0, rows)
