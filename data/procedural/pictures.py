"""Pictures from a folder as textures, each with copies of half the size after size, so that far ones don't flicker."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from data.errors import UserError
from data.files import PHOTO_SUFFIXES, natural_key
from data.procedural.shapes import Vec, step

SIDE = 256
"""Pixels along each side of a picture; larger ones are made smaller, all are made square."""
LEVELS = 6
MAX_PICTURES = 1000
"""About 260 MB of memory."""


@dataclass(frozen=True)
class PictureAtlas:
    """Pixels of all pictures and their smaller copies one after the other."""

    pixels: tuple[Tensor, Tensor, Tensor]
    """Red, green and blue, linear, 16-bit floats."""

    def look_up(self, picture: Int[Tensor, " r"], p: Vec, normal: Vec, spacing: Float[Tensor, "r 1"]) -> Vec:
        """Colours of surface points in pattern units, of which a picture spans one; mirrored beyond its rim.

        The picture is laid on from the side that the normal is nearest to. `spacing` is the distance of neighbouring
        rays, in pattern units too.
        """
        sizes = [n.abs() for n in normal]
        by_x = step(sizes[0] - torch.maximum(sizes[1], sizes[2]))
        by_z = step(sizes[2] - torch.maximum(sizes[0], sizes[1]))
        u, v = torch.lerp(p[0], p[1], by_x), torch.lerp(-p[2], p[1], by_z)
        level = (spacing * SIDE).clamp_min(1e-6).log2().round().clamp(0, LEVELS - 1)
        level = level.to(torch.int32)
        side = SIDE >> level
        start = picture[:, None].to(torch.int32) * _pyramid_size() + _level_starts(level.device)[level]
        x0, x1, x = _mirror(u, side)
        y0, y1, y = _mirror(v, side)
        y0, y1 = y0 * side + start, y1 * side + start

        def channel(pixels: Tensor) -> Tensor:
            def at(index: Tensor) -> Tensor:
                return pixels.index_select(0, index.view(-1)).to(torch.float32).view_as(u)

            return torch.lerp(torch.lerp(at(y0 + x0), at(y0 + x1), x), torch.lerp(at(y1 + x0), at(y1 + x1), x), y)

        return channel(self.pixels[0]), channel(self.pixels[1]), channel(self.pixels[2])


@lru_cache
def load_pictures(folder: str, device: torch.device) -> PictureAtlas:
    """Read the pictures of a folder, in the natural order of their names."""
    pyramids = [_pyramid(path) for path in list_pictures(folder)]
    joined = torch.from_numpy(np.concatenate(pyramids, axis=1)).to(device)
    return PictureAtlas((joined[0].contiguous(), joined[1].contiguous(), joined[2].contiguous()))


@lru_cache
def list_pictures(folder: str) -> tuple[Path, ...]:
    """The picture files of a folder, at most MAX_PICTURES of them."""
    try:
        with os.scandir(folder) as entries:
            names = sorted((e.name for e in entries if e.is_file()), key=natural_key)
    except OSError as error:
        raise UserError(
            f"The folder of pictures {folder} cannot be read ({error.strerror}). Check the path."
        ) from error
    found = [Path(folder) / n for n in names if n.lower().endswith(PHOTO_SUFFIXES) and not n.startswith(".")]
    if not found:
        raise UserError(f"{folder} holds no pictures; give a folder with .jpg or .png files.")
    return tuple(found[:MAX_PICTURES])


def _pyramid(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"The picture {path} cannot be read ({error}). Repair it or take it out.") from error
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    picture = picture.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    level = (np.asarray(picture, dtype=np.float32) / 255) ** 2.2
    flat = []
    for _ in range(LEVELS):
        flat.append(level.reshape(-1, 3).T)
        half = len(level) // 2
        level = level.reshape(half, 2, half, 2, 3).mean((1, 3))
    return np.concatenate(flat, axis=1).astype(np.float16)


def _pyramid_size() -> int:
    return sum((SIDE >> level) ** 2 for level in range(LEVELS))


@lru_cache
def _level_starts(device: torch.device) -> Tensor:
    sizes = [(SIDE >> level) ** 2 for level in range(LEVELS)]
    return torch.tensor([sum(sizes[:level]) for level in range(LEVELS)], dtype=torch.int32, device=device)


def _mirror(u: Tensor, side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Neighbouring pixels and the place between them for a coordinate of period 2 that runs forth and back."""
    folded = 1 - (u - (u / 2).floor() * 2 - 1).abs()
    place = folded * side - 0.5
    whole = place.floor()
    cell = whole.to(torch.int32)
    last = side - 1
    low, high = torch.minimum(cell.clamp_min(0), last), torch.minimum((cell + 1).clamp_min(0), last)
    return low, high, place - whole
