"""Finds, before any ray is cast, which shapes may be met by which bundles of rays.

A bundle misses a shape if a plane parts them. Each test plane is given by a vector n in the coordinates of the shape,
whose reach in that direction is known.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from data.procedural.scene import NO_SHAPE, SceneTables
from data.procedural.shapes import FAR, Kind, Vec, dot, vec
from data.procedural.tracing import Tiles


class Reach:
    """How far shapes extend at most: no farther than their ball and their box."""

    def __init__(self, tables: SceneTables, shape: Int[Tensor, "*n"]) -> None:
        self.radius = 1.001 * tables.reach[shape]
        self.height = torch.where(tables.kind == Kind.TORUS, tables.params[:, 0], 1.0)[shape]

    def toward(self, n: Vec) -> Tensor:
        """Largest inner product of n with a point of the shape."""
        box = n[0].abs() + n[1].abs() + n[2].abs() * self.height
        return torch.minimum(1.001 * box, length(n) * self.radius)


def find_candidates(
    tables: SceneTables, tiles: Tiles, scene_of_view: Int[Tensor, " v"]
) -> tuple[Int[Tensor, " r"], Int[Tensor, " r"]]:
    """Tile and shape of all pairs that may meet, with the tiles in rising order."""
    views, count = len(scene_of_view), tiles.grid[0] * tiles.grid[1]
    slots = tables.shapes_per_scene
    shapes = scene_of_view[:, None] * slots + torch.arange(slots, device=scene_of_view.device)
    rows = tables.to_local[shapes].unbind(2)
    eye = [c.view(views, count)[:, :1] for c in tiles.origin]
    # Vectors are three tensors [v t s], or [v 1 s] for what all tiles of a view share.
    o = vec((_row_dot(m, eye) + m[..., 3])[:, None] for m in rows)
    first = vec(_row_dot(m[:, None], [c.view(views, count, -1)[..., :1] for c in tiles.corner]) for m in rows)
    across, down = (vec(_row_dot(m, e[:, :, None].unbind(1))[:, None] for m in rows) for e in tiles.edges)
    second, last = _add(first, across), _add(first, down)
    third = _add(second, down)
    center = _add(first, third)
    reach = Reach(tables, shapes[:, None])
    kind = tables.kind[shapes][:, None]
    close = (kind != NO_SHAPE) & _in_front(tables, tiles, shapes)[:, None]
    for corner, edge in ((first, across), (second, down), (last, across), (first, down)):
        side = cross(corner, edge)
        inward = dot(side, center).sign()
        close = close & (reach.toward(side) >= dot(side, o) * inward)
    is_plane = kind == Kind.HALFSPACE
    if is_plane.any():
        heights = torch.stack(torch.broadcast_tensors(first[2], second[2], third[2], last[2]), -1)
        close = torch.where(is_plane, _foremost_planes(o[2], heights, is_plane), close)
    view, tile, slot = close.nonzero().unbind(1)
    return view * count + tile, shapes[view, slot]


def _in_front(tables: SceneTables, tiles: Tiles, shapes: Int[Tensor, "v s"]) -> Bool[Tensor, "v s"]:
    """Whether the balls around shapes reach in front of the eyes."""
    ball = tables.ball[shapes]
    eye, forward = tiles.eye[:, None], tiles.forward[:, None]
    return ((ball[..., :3] - eye) * forward).sum(-1) + ball[..., 3] > 0


def _foremost_planes(
    height: Float[Tensor, "v 1 s"], corners: Float[Tensor, "v t s 4"], is_plane: Bool[Tensor, "v 1 s"]
) -> Bool[Tensor, "v t s"]:
    """Planes seen in a tile: the one that is nearest at all four corners, as 1 / depth is linear; else all in front."""
    inverse = torch.where(is_plane[..., None], -corners / height[..., None].clamp_min(1e-6), -1.0)
    in_front = (inverse > 0).any(-1)
    wins = (inverse == inverse.amax(-2, keepdim=True)).all(-1) & in_front
    return torch.where(wins.any(-1, keepdim=True), wins, in_front)


def find_occluders(
    tables: SceneTables, shape: Int[Tensor, " r"], center: Vec, half: Vec,
    to_light: Vec, spread: Float[Tensor, "r l"], ends: Float[Tensor, "r l"],
) -> Bool[Tensor, "r l s"]:  # fmt: skip
    """Shapes that may lie between points of a shape and lights, its own among them.

    The points are in boxes `center` +- `half` [r]; their rays start toward the middles of the lights [r l], or up to
    `spread` beside, and stop at the ray parameters `ends`.
    """
    slots = tables.shapes_per_scene
    others = (shape // slots * slots)[:, None] + torch.arange(slots, device=shape.device)
    rows = tables.to_local[others][:, None].unbind(3)
    # Vectors are three tensors [r l s], or [r 1 s] for what all lights share.
    o = vec(_row_dot(m, [c[:, None, None] for c in center]) + m[..., 3] for m in rows)
    d = vec(_row_dot(m, [c[..., None] for c in to_light]) for m in rows)
    reach = Reach(tables, others[:, None])
    square = dot(d, d).clamp_min(1e-12)
    longest = torch.minimum((length(o) + reach.radius) / square.sqrt(), ends[..., None]).clamp_max(FAR)
    sideways = longest * spread[..., None]

    def world(n: Vec) -> Vec:
        return vec(rows[0][..., i] * n[0] + rows[1][..., i] * n[1] + rows[2][..., i] * n[2] for i in range(3))

    def box(n: Vec) -> Tensor:
        return (
            n[0].abs() * half[0][:, None, None]
            + n[1].abs() * half[1][:, None, None]
            + n[2].abs() * half[2][:, None, None]
        )

    # The shape is behind the points, or seen along the light they are apart in one of four directions.
    back = world(d)
    behind = (dot(d, o) > reach.toward(d) + box(back)) & (square > spread[..., None] * length(back))
    kind = tables.kind[others][:, None]
    # The back of an uncut convex shape is dark without its own shadow, and nothing is behind the planes.
    itself = (others == shape[:, None]) & (tables.kind[others] != Kind.TORUS) & (tables.cut_kind[others] < 0)
    close = (kind != NO_SHAPE) & (kind != Kind.HALFSPACE) & ~itself[:, None] & ~behind
    zero, shift = torch.zeros_like(d[0]), dot(d, o) / square
    offset = vec(a - shift * b for a, b in zip(o, d, strict=True))
    for n in (offset, (zero, d[2], -d[1]), (-d[2], zero, d[0]), (d[1], -d[0], zero)):
        beside = world(n)
        close = close & (dot(n, o).abs() <= reach.toward(n) + box(beside) + sideways * length(beside))
    return close


def cross(a: Vec, b: Vec) -> Vec:
    """Cross products."""
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def length(v: Vec) -> Tensor:
    """Lengths of vectors."""
    return dot(v, v).sqrt()


def _row_dot(matrix: Tensor, v) -> Tensor:
    """Inner products of a row of matrices [... 3 or 4] with vectors of three tensors."""
    return matrix[..., 0] * v[0] + matrix[..., 1] * v[1] + matrix[..., 2] * v[2]


def _add(a: Vec, b: Vec) -> Vec:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]
