"""Triangle meshes in memory: corners, texture coordinates, colours and materials."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Int, Shaped, UInt8


@dataclass(frozen=True)
class Material:
    """How triangles are coloured: `color` times the texture times the vertex colour."""

    color: Float[np.ndarray, " 3"] = field(default_factory=lambda: np.ones(3, np.float32))
    """Linear (not sRGB) factor, 0..1."""
    texture: UInt8[np.ndarray, "h w 4"] | None = None
    """sRGB colour and coverage; row 0 is at v = 0; repeats outside 0..1."""
    alpha_cutoff: float | None = None
    """Where the texture's alpha is below this there is a hole; None: no holes."""


@dataclass(frozen=True)
class Mesh:
    """Triangles with per-vertex attributes."""

    vertices: Float[np.ndarray, "n 3"]
    triangles: Int[np.ndarray, "t 3"]
    uv: Float[np.ndarray, "n 2"]
    """Texture coordinates, v pointing down the picture (as glTF has it)."""
    colors: Float[np.ndarray, "n 3"]
    """Linear vertex colours, 0..1."""
    material_index: Int[np.ndarray, " t"]
    materials: tuple[Material, ...]

    def turn_y_up_to_z_up(self) -> Mesh:
        """The mesh turned a quarter about x, so that its y axis points up (z)."""
        x, y, z = self.vertices.T
        return replace(self, vertices=np.stack([x, -z, y], axis=1))

    def fit_sphere(self, radius: float) -> Mesh:
        """The mesh with its bounding-box centre at the origin and its farthest vertex at `radius`."""
        used = self.vertices[np.unique(self.triangles)].astype(np.float64)
        middle = (used.min(axis=0) + used.max(axis=0)) / 2
        scale = radius / np.linalg.norm(used - middle, axis=1).max()
        return replace(self, vertices=((self.vertices - middle) * scale).astype(np.float32))


def from_corners(
    corners: Float[np.ndarray, "t 3 3"],
    uv: Float[np.ndarray, "t 3 2"],
    colors: Float[np.ndarray, "t 3 3"],
    material_index: Int[np.ndarray, " t"],
    materials: tuple[Material, ...],
) -> Mesh:
    """A mesh whose triangles share no vertices, from attributes of their corners."""
    triangles = np.arange(3 * len(corners)).reshape(-1, 3)
    flat = [np.asarray(x, np.float32).reshape(3 * len(corners), -1) for x in (corners, uv, colors)]
    return Mesh(flat[0], triangles, flat[1], flat[2], material_index, materials)


def cross_products(mesh: Mesh) -> Float[np.ndarray, "t 3"]:
    """Normals of the triangles with twice their area as length (float64)."""
    a, b, c = mesh.vertices[mesh.triangles].astype(np.float64).transpose(1, 0, 2)
    return np.cross(b - a, c - a)


def srgb_to_linear(x: Shaped[np.ndarray, "*s"]) -> Float[np.ndarray, "*s"]:
    """Decode sRGB values 0..1 to linear light (IEC 61966-2-1)."""
    return np.where(x <= 0.04045, x / 12.92, ((np.maximum(x, 0) + 0.055) / 1.055) ** 2.4)


def linear_to_srgb(x: Shaped[np.ndarray, "*s"]) -> Float[np.ndarray, "*s"]:
    """Encode linear light as sRGB values 0..1, clipped (IEC 61966-2-1)."""
    x = np.clip(x, 0, 1)
    return np.where(x <= 0.0031308, x * 12.92, 1.055 * x ** (1 / 2.4) - 0.055)
