"""How surfaces look: which way they face, their texture, and the light that reaches them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from data.procedural.culling import find_occluders
from data.procedural.pictures import PictureAtlas
from data.procedural.scene import SceneTables
from data.procedural.shapes import CLOSED_FORM, FAR, Kind, Vec, dot, normal, step, vec
from data.procedural.textures import texture_colors
from data.procedural.tracing import TILE, groups, shadows, take, transform

SHADOW_LIFT = 4e-3
"""How far above a surface its shadow rays start, in world units."""
PARTS = 2
"""Parts of a row that are tested for shadow on their own."""
BEYOND = 1e4
"""More than any coordinate in a scene."""


class Surface(NamedTuple):
    """Rows of rays, one tile and one shape each, with the points that they see."""

    tile: Int[Tensor, " r"]
    shape: Int[Tensor, " r"]
    mine: Float[Tensor, "r p"]
    """1 for rays that see the shape; the numbers of others mean nothing."""
    on_cut: Float[Tensor, "r p"]
    """1 where a cut made the surface."""
    point: Vec
    direction: Vec
    """Of the rays, reaching depth 1."""
    spacing: Float[Tensor, "r 1"]
    """Distance of neighbouring rays in world units."""


class Lamp(NamedTuple):
    """One light as each row of points sees it."""

    toward: Vec
    """From each point to the middle of the light, or the unit direction if it is distant."""
    strength: Tensor
    """Cosine of the angle with the normal, less what is lost on the way."""
    shine: Tensor
    """Highlight, in parts of what arrives."""
    color: Float[Tensor, "r 3"]


def shade(tables: SceneTables, surface: Surface, with_shadows: bool, atlas: PictureAtlas | None) -> Vec:
    """Linear colours (0..1) of surface points."""
    local = transform(tables.to_local[surface.shape], surface.point, 1)
    local_normal = _normals(tables.kind[surface.shape], tables.params[surface.shape], local, len(Kind))
    base = texture_colors(tables, surface.shape, local, local_normal, atlas, surface.spacing)
    facing = _toward_eye(surface, _world_normals(tables, surface, local_normal))
    lifted = vec(p + n * SHADOW_LIFT for p, n in zip(surface.point, facing, strict=True))
    count = tables.light_place.shape[1]
    lamps = [_lamp(tables, surface, facing, lifted, i) for i in range(count)]
    lit = _shadows(tables, surface, lifted, lamps) if with_shadows else None

    ambient = tables.ambient[surface.shape // tables.shapes_per_scene]
    upward = facing[2] * 0.5 + 0.5
    colors = []
    for channel in range(3):
        low, high = ambient[:, 0, channel, None], ambient[:, 1, channel, None]
        light, shine = low + upward * (high - low), torch.zeros_like(upward)
        for i, lamp in enumerate(lamps):
            arriving = lamp.color[:, channel, None] * (lamp.strength if lit is None else lamp.strength * lit[i])
            light, shine = light + arriving, shine + arriving * lamp.shine
        colors.append((base[channel] * light + shine).clamp(0, 1))
    return vec(colors)


def _world_normals(tables: SceneTables, surface: Surface, local_normal: Vec) -> Vec:
    """Normals in the world, of any length and side; on cut faces those of the shape that cuts."""
    outward = _transposed(tables.to_local[surface.shape], local_normal)
    rows = surface.on_cut.amax(1).nonzero()[:, 0]
    if not len(rows):
        return outward
    shape = surface.shape[rows]
    in_cut = transform(tables.to_cut[shape], take(surface.point, rows), 1)
    cut_normal = _normals(tables.cut_kind[shape], tables.cut_params[shape], in_cut, len(CLOSED_FORM))
    cut_normal = _transposed(tables.to_cut[shape], cut_normal)
    on_cut = surface.on_cut.index_select(0, rows)
    blended = [torch.lerp(a, b, on_cut) for a, b in zip(take(outward, rows), cut_normal, strict=True)]
    return vec(a.index_copy(0, rows, b) for a, b in zip(outward, blended, strict=True))


def _normals(kind: Int[Tensor, " r"], params: Float[Tensor, "r 2"], local: Vec, kinds: int) -> Vec:
    normals = vec(torch.zeros_like(local[0]) for _ in range(3))
    for key, rows in enumerate(groups(kind, kinds)):
        if len(rows):
            found = normal(Kind(key), take(local, rows), params[rows])
            for out, part in zip(normals, found, strict=True):
                out.index_copy_(0, rows, part)
    return normals


def _transposed(matrix: Float[Tensor, "r 3 4"], v: Vec) -> Vec:
    """Normals go from a shape's coordinates to the world by the transpose of the way back."""
    m = matrix[..., None].unbind(1)
    return vec(m[0][:, i] * v[0] + m[1][:, i] * v[1] + m[2][:, i] * v[2] for i in range(3))


def _toward_eye(surface: Surface, outward: Vec) -> Vec:
    """Unit normals on the side that the rays come from."""
    side = 1 - 2 * (dot(outward, surface.direction) > 0).to(torch.float32)
    scale = side / dot(outward, outward).sqrt().clamp_min(1e-20)
    return vec(c * scale for c in outward)


def _lamp(tables: SceneTables, surface: Surface, facing: Vec, lifted: Vec, index: int) -> Lamp:
    """Light number `index` without its shadows."""
    scene = surface.shape // tables.shapes_per_scene
    place = tables.light_place[scene, index]
    near = place[:, 3:]
    toward = vec(place[:, i, None] - near * lifted[i] for i in range(3))
    square = dot(toward, toward)
    away = square.rsqrt()
    loss = 1 + near * (3 / (square + 0.75) - 1)
    cosine = dot(facing, toward) * away
    eye = dot(surface.direction, surface.direction).rsqrt()
    half = vec(u * away - d * eye for u, d in zip(toward, surface.direction, strict=True))
    shine = (dot(facing, half) * dot(half, half).clamp_min(1e-12).rsqrt()).clamp_min(0)
    for _ in range(5):
        shine = shine * shine
    gloss = tables.surface[surface.shape, 3:]
    return Lamp(toward, cosine.clamp_min(0) * loss, shine * gloss, tables.light_color[scene, index])


def _spread_over(tables: SceneTables, scene: Int[Tensor, " r"], lamp: Lamp, index: int) -> Vec:
    """Ways to a light from rows of points; 2 x 2 neighbouring rays look at different places on it."""
    sides = tables.light_sides[scene, index]
    line = torch.arange(TILE, device=sides.device) % 2 / 2 - 0.25
    x, y = line.repeat(TILE), line.repeat_interleave(TILE)
    return vec(lamp.toward[i] + (sides[:, 0, i, None] * x + sides[:, 1, i, None] * y) for i in range(3))


def _shadows(tables: SceneTables, surface: Surface, lifted: Vec, lamps: list[Lamp]) -> Float[Tensor, "l r p"]:
    """1 where light arrives and 0 in shadow, for each light."""
    # Parts of rows lie in smaller boxes, and more of them need no answer.
    count, rays = surface.mine.shape
    shape = surface.shape.repeat_interleave(PARTS)
    scene = shape // tables.shapes_per_scene
    points = vec(c.view(count * PARTS, -1) for c in lifted)
    hidden = (1 - surface.mine).view(count * PARTS, -1) * BEYOND
    low, high = [(c + hidden).amin(1) for c in points], [(c - hidden).amax(1) for c in points]
    center = vec((a + b) / 2 for a, b in zip(low, high, strict=True))
    half = vec((b - a) / 2 for a, b in zip(low, high, strict=True))
    place, width = tables.light_place[scene], tables.light_sides[scene].norm(dim=-1).sum(-1)
    toward = vec(place[..., i] - place[..., 3] * center[i][:, None] for i in range(3))
    ends = 1 + (1 - place[..., 3]) * (FAR - 1)
    # Rays that need no answer end where they start.
    asked = torch.stack([step(lamp.strength) * surface.mine for lamp in lamps]).view(len(lamps), count * PARTS, -1)
    lengths = asked * ends.T[..., None]
    reached = (asked.amax(2) > 0).T & (tables.light_color[scene].amax(-1) > 0)
    pairs = find_occluders(tables, shape, center, half, toward, width / 2, ends) & reached[..., None]
    ways = [_spread_over(tables, surface.shape // tables.shapes_per_scene, lamp, i) for i, lamp in enumerate(lamps)]
    ways = tuple(vec(c.view(count * PARTS, -1) for c in way) for way in ways)
    return shadows(tables, pairs, scene * tables.shapes_per_scene, points, ways, lengths).view(-1, count, rays)
