"""Pictures of procedural scenes: rays of cameras, what they see, and pixels from rays."""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from data.cameras import Cameras
from data.procedural.culling import find_candidates
from data.procedural.pictures import PictureAtlas
from data.procedural.scene import SceneTables
from data.procedural.shading import Surface, shade
from data.procedural.shapes import along, dot
from data.procedural.tracing import TILE, Tiles, cast, make_tiles, nearest, take

RAYS_AT_ONCE = {"cpu": 2**16, "cuda": 2**23}
"""Camera rays traced together: on a CPU as many as its cache holds the working memory of."""
NEAR, FARTHEST = 0.02, 1e5
"""Depths between which cameras see, in world units."""


def render(
    tables: SceneTables,
    cameras: Cameras,
    rays_per_side: int = 2,
    with_shadows: bool = True,
    atlas: PictureAtlas | None = None,
) -> tuple[Float[Tensor, "b v 3 h w"], Float[Tensor, "b v 1 h w"]]:
    """Colour (sRGB, 0..1) of what is hit in each pixel, the mean over its rays, and the share of rays that hit."""
    size, views = cameras.image_size, cameras.num_views
    c2w, intrinsics = cameras.c2w.flatten(0, 1), cameras.intrinsics.flatten(0, 1)
    scene = torch.arange(tables.num_scenes, device=c2w.device).repeat_interleave(views)
    most = RAYS_AT_ONCE.get(c2w.device.type, RAYS_AT_ONCE["cuda"])
    stride = max(1, most // (size[0] * size[1] * rays_per_side**2))
    parts = []
    for start in range(0, len(c2w), stride):
        chunk = slice(start, start + stride)
        tiles = make_tiles(c2w[chunk], intrinsics[chunk], size, rays_per_side)
        rays = trace(tables, tiles, scene[chunk], with_shadows, atlas)
        parts.append(to_pixels(rays, tiles.grid, size, rays_per_side))
    pixels = torch.cat(parts).view(-1, views, 4, *size)
    return pixels[:, :, :3], pixels[:, :, 3:]


def trace(
    tables: SceneTables, tiles: Tiles, scene_of_view: Int[Tensor, " v"], with_shadows: bool, atlas: PictureAtlas | None
) -> Float[Tensor, "tiles 4 p"]:
    """Linear colour (0 where nothing is hit) and hit (0 or 1) of all rays of the tiles."""
    surface, hit = look(tables, tiles, scene_of_view)
    shape = len(hit), 3, hit.shape[1]
    color = torch.stack(shade(tables, surface, with_shadows, atlas), 1) * surface.mine[:, None]
    # All but one of the numbers added up for a ray are 0, so that their order does not matter.
    out = torch.zeros(shape, device=hit.device).index_add(0, surface.tile, color)
    scene = scene_of_view[tiles.view]
    has_sky = tables.has_sky[scene][:, None]
    if has_sky.any():
        height = (tiles.direction[2] / dot(tiles.direction, tiles.direction).sqrt()).clamp_min(0)
        horizon, overhead = tables.sky[scene][..., None].unbind(1)
        sky = horizon + (overhead - horizon) * height[:, None]
        missed = (1 - hit) * has_sky
        out, hit = out + sky * missed[:, None], hit + missed
    return torch.cat([out, hit[:, None]], 1)


def look(
    tables: SceneTables, tiles: Tiles, scene_of_view: Int[Tensor, " v"]
) -> tuple[Surface, Float[Tensor, "tiles p"]]:
    """The surfaces that rays see, and which rays (1, else 0) hit any."""
    tile, shape = find_candidates(tables, tiles, scene_of_view)
    farthest = torch.full((len(tile), 1), FARTHEST, device=tile.device)
    hits = cast(tables, shape, take(tiles.origin, tile), take(tiles.direction, tile), NEAR, farthest)
    tile = tile[hits.row]
    mine, hit = nearest(hits, tile, len(tiles.view))
    rows = mine.amax(1).nonzero()[:, 0]
    tile, mine = tile[rows], mine.index_select(0, rows)
    direction, depth = take(tiles.direction, tile), hits.t.index_select(0, rows) * mine
    point = along(take(tiles.origin, tile), depth, direction)
    spacing = depth.amax(1, keepdim=True) * tiles.ray_angle[tiles.view[tile], None]
    on_cut = hits.on_cut.index_select(0, rows) * mine
    return Surface(tile, hits.shape[rows], mine, on_cut, point, direction, spacing), hit


def to_pixels(
    rays: Float[Tensor, "tiles 4 p"], grid: tuple[int, int], size: tuple[int, int], rays_per_side: int
) -> Float[Tensor, "v 4 h w"]:
    """Mean colour of the rays of each pixel that hit, as sRGB, and their share."""
    n, (h, w) = rays_per_side, size
    raster = rearrange(
        rays, "(v down across) c (y x) -> v c (down y) (across x)", down=grid[0], across=grid[1], y=TILE
    )[..., : h * n, : w * n]
    # Sums of single terms, not a reduction: the same order whatever the size of the batch.
    total = sum((raster[..., i::n, :] for i in range(1, n)), raster[..., ::n, :])
    total = sum((total[..., i::n] for i in range(1, n)), total[..., ::n])
    hits = total[:, 3:]
    return torch.cat([to_srgb((total[:, :3] / hits.clamp_min(1)).clamp(0, 1)), hits / n**2], 1)


def to_srgb(linear: Tensor) -> Tensor:
    """Linear colours (0..1) with the sRGB curve (IEC 61966-2-1)."""
    return torch.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear.clamp_min(0.0031308) ** (1 / 2.4) - 0.055)
