"""Texture files read as pictures, and sampled for many triangles at once."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image

from data.errors import UserError
from data.meshes.mesh import Mesh, cross_products


def decode_picture(data: bytes) -> UInt8[np.ndarray, "h w 4"]:
    """RGBA pixels of an encoded picture."""
    with Image.open(io.BytesIO(data)) as picture:
        return np.asarray(picture.convert("RGBA"))


def read_beside(path: Path, written: str) -> bytes:
    """Bytes of the file that mesh `path` calls `written`, relative to the mesh's folder."""
    place = path.parent / written.replace("\\", "/")
    if not place.is_file():
        raise UserError(f"{path} needs the file {written}, which is not there; put it beside the mesh.")
    return place.read_bytes()


class TextureAtlas:
    """All textures of a mesh with their halved copies in one flat array, so that one gather samples any of them.

    Slot 0 is a single white texel, for triangles without a texture; slot m + 1 is the texture of material m.
    """

    def __init__(self, mesh: Mesh) -> None:
        slots = [[np.full((1, 1, 4), 255, np.uint8)]]
        slots += [[] if m.texture is None else halvings(m.texture) for m in mesh.materials]
        levels = [level for slot in slots for level in slot]
        self.texels = np.concatenate([level.reshape(-1, 4) for level in levels])
        sizes = np.array([level.shape[:2] for level in levels])
        offsets = np.cumsum([0, *sizes.prod(axis=1)])[:-1]
        self.table = np.concatenate([offsets[:, None], sizes], axis=1)
        self.levels = np.array([len(slot) for slot in slots])
        self.first = np.cumsum([0, *self.levels])[:-1]
        own = mesh.material_index + 1
        self.slot = np.where(self.levels[own] > 0, own, 0)
        self.density = texel_density(mesh, self.table[self.first[self.slot], 1:])

    def sample(
        self, triangle: Int[np.ndarray, " n"], uv: Float[np.ndarray, "n 2"], footprint: Float[np.ndarray, " n"]
    ) -> Float[np.ndarray, "n 4"]:
        """Bilinear sRGB colour and alpha (0..1) at `uv`, from the copy whose texels are about as large as `footprint`.

        The footprint is the width of a ray where it hits, in world units.
        """
        slot = self.slot[triangle]
        texels_across = np.maximum(footprint * self.density[triangle], 1e-9)
        level = np.clip(np.round(np.log2(texels_across)), 0, self.levels[slot] - 1).astype(np.int64)
        offset, h, w = self.table[self.first[slot] + level].T
        # Textures repeat, so only the fraction counts; it also keeps huge coordinates within integers.
        x, y = (uv % 1.0).T
        x, y = x * w - 0.5, y * h - 0.5
        left, top = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
        right_share, bottom_share = (x - left)[:, None], (y - top)[:, None]
        columns = (left % w, (left + 1) % w)
        rows = (offset + top % h * w, offset + (top + 1) % h * w)
        upper, lower = (
            self.texels[row + columns[0]] * (1 - right_share) + self.texels[row + columns[1]] * right_share
            for row in rows
        )
        return (upper * (1 - bottom_share) + lower * bottom_share) / 255


def halvings(texture: UInt8[np.ndarray, "h w 4"]) -> list[UInt8[np.ndarray, "_h _w 4"]]:
    """A texture and its copies halved down to one texel (area means)."""
    picture = Image.fromarray(texture)
    levels = [texture]
    while max(picture.size) > 1:
        picture = picture.resize((max(picture.width // 2, 1), max(picture.height // 2, 1)), Image.Resampling.BOX)
        levels.append(np.asarray(picture))
    return levels


def texel_density(mesh: Mesh, sizes: Int[np.ndarray, "t 2"]) -> Float[np.ndarray, " t"]:
    """Texels per world unit of each triangle (root of the ratio of areas), for textures of `sizes` (h, w)."""
    edges = np.diff(mesh.uv[mesh.triangles].astype(np.float64) * sizes[:, None, ::-1], axis=1)
    texel_area = np.abs(edges[:, 0, 0] * edges[:, 1, 1] - edges[:, 0, 1] * edges[:, 1, 0])
    area = np.linalg.norm(cross_products(mesh), axis=1)
    return np.sqrt(texel_area / np.maximum(area, 1e-30))
