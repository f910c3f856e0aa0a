"""Renders a `Mesh` on the CPU: rays by Open3D's RaycastingScene (Embree), textures and shading in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from data.errors import UserError
from data.meshes.mesh import Mesh, cross_products, linear_to_srgb, srgb_to_linear
from data.meshes.textures import TextureAtlas

MAX_HOLES = 16
"""So many cut-out surfaces in a row let a ray through."""
CREASE_DEGREES = 40.0
"""Edges sharper than this stay sharp; flatter ones are shaded as a smooth surface."""
MAX_NEIGHBOURS = 64
"""Where more triangles meet in a point, each looks at so many of them."""
SYSTEM_PACKAGES = {"libusb": "libusb-1.0-0", "libEGL": "libegl1", "libGL": "libgl1", "libX11": "libx11-6"}


@dataclass(frozen=True)
class Lighting:
    """Light that is the same everywhere: ambient and some directional lights, as linear intensities."""

    ambient: float
    directions: Float[np.ndarray, "l 3"]
    """Unit vectors towards the lights."""
    intensities: Float[np.ndarray, " l"]

    @staticmethod
    def random(rng: np.random.Generator) -> Lighting:
        """Mostly ambient light with one or two lights from above; white surfaces come out between grey and white."""
        count = int(rng.integers(1, 3))
        azimuth, elevation = rng.uniform(0, 2 * np.pi, count), np.radians(rng.uniform(20, 80, count))
        flat = np.cos(elevation)
        directions = np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(elevation)], axis=1)
        shares = rng.dirichlet(np.full(count, 3.0))
        total, ambient_share = rng.uniform(0.85, 1.15), rng.uniform(0.5, 0.85)
        return Lighting(total * ambient_share, directions, shares * total * (1 - ambient_share))

    def arriving(self, normals: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 1"]:
        """Light on matt surfaces with these unit normals (Lambert's cosine law), a little less from below."""
        direct = np.maximum(np.einsum("ni,li->nl", normals, self.directions), 0)
        ambient = self.ambient * (0.85 + 0.15 * normals[:, 2])
        return (ambient + np.einsum("nl,l->n", direct, self.intensities))[:, None]


class Hits(NamedTuple):
    """Where rays meet triangles."""

    directions: Float[np.ndarray, "n 3"]
    distance: Float[np.ndarray, " n"]
    triangle: Int[np.ndarray, " n"]
    weights: Float[np.ndarray, "n 3"]
    """Barycentric shares of the triangle's corners."""


class MeshRenderer:
    """Renders views of one mesh; making it builds the ray-tracing tree, normals and textures once."""

    def __init__(self, mesh: Mesh) -> None:
        open3d = require_open3d()
        self.tensor = open3d.core.Tensor.from_numpy
        self.mesh = mesh
        self.tree = open3d.t.geometry.RaycastingScene(nthreads=1)
        self.tree.add_triangles(
            self.tensor(mesh.vertices.astype(np.float32)), self.tensor(mesh.triangles.astype(np.uint32))
        )
        self.face_normals, self.corner_normals = normals(mesh)
        self.textures = TextureAtlas(mesh)
        self.factors = np.stack([m.color for m in mesh.materials])
        self.cutoffs = np.array([-1.0 if m.alpha_cutoff is None else m.alpha_cutoff for m in mesh.materials])

    def render(
        self,
        c2w: Float[np.ndarray, "4 4"],
        intrinsics: Float[np.ndarray, " 4"],
        image_size: tuple[int, int],
        lighting: Lighting,
        rays_per_side: int = 2,
    ) -> UInt8[np.ndarray, "h w 4"]:
        """One RGBA picture (sRGB, straight alpha) with `rays_per_side` squared rays a pixel.

        Alpha is the share of a pixel's rays that hit; colour is the mean over those. `c2w` has OpenCV axes.
        """
        (h, w), n = image_size, rays_per_side
        directions = pixel_rays(c2w, intrinsics, image_size, n)
        color, hit = self.trace(c2w[:3, 3], directions, 1 / (intrinsics[0] * n), lighting)
        color = color.reshape(h, n, w, n, 3).sum(axis=(1, 3))
        hits = hit.reshape(h, n, w, n).sum(axis=(1, 3))[..., None]
        rgba = np.concatenate([color / np.maximum(hits, 1), hits / n**2], axis=-1)
        return np.floor(rgba * 255 + 0.5).astype(np.uint8)

    def trace(
        self,
        origin: Float[np.ndarray, " 3"],
        directions: Float[np.ndarray, "n 3"],
        ray_angle: float,
        lighting: Lighting,
    ) -> tuple[Float[np.ndarray, "n 3"], Bool[np.ndarray, " n"]]:
        """sRGB colours (zero where nothing is hit) and hits of rays from one point, `ray_angle` radians apart."""
        color, hit = np.zeros((len(directions), 3)), np.zeros(len(directions), bool)
        alive, start = np.arange(len(directions)), np.zeros(len(directions))
        for _ in range(MAX_HOLES):
            hits, found = self.cast(origin, directions[alive], start[alive])
            alive = alive[found]
            if len(alive) == 0:
                break
            rgb, solid = self.shade(hits, ray_angle, lighting)
            color[alive[solid]] = rgb[solid]
            hit[alive[solid]] = True
            start[alive] = hits.distance * (1 + 1e-5) + 1e-5
            alive = alive[~solid]
        return color, hit

    def cast(
        self, origin: Float[np.ndarray, " 3"], directions: Float[np.ndarray, "n 3"], start: Float[np.ndarray, " n"]
    ) -> tuple[Hits, Bool[np.ndarray, " n"]]:
        """The first hits beyond the distances `start`, and which of the rays have one."""
        rays = np.concatenate([origin + directions * start[:, None], directions], axis=1)
        answer = self.tree.cast_rays(self.tensor(rays.astype(np.float32)), nthreads=1)
        distance = answer["t_hit"].numpy()
        found = np.isfinite(distance)
        u, v = answer["primitive_uvs"].numpy()[found].astype(np.float64).T
        triangle = answer["primitive_ids"].numpy()[found].astype(np.int64)
        weights = np.stack([1 - u - v, u, v], axis=1)
        return Hits(directions[found], distance[found] + start[found], triangle, weights), found

    def shade(
        self, hits: Hits, ray_angle: float, lighting: Lighting
    ) -> tuple[Float[np.ndarray, "n 3"], Bool[np.ndarray, " n"]]:
        """sRGB colours of hits (both sides of a triangle alike), and whether there is surface rather than a hole."""
        mesh, triangle = self.mesh, hits.triangle
        corners, material = mesh.triangles[triangle], mesh.material_index[triangle]

        def blend(values: Float[np.ndarray, "n 3 c"]) -> Float[np.ndarray, "n c"]:
            return np.einsum("nk,nkc->nc", hits.weights, values)

        normal = blend(self.corner_normals[triangle])
        normal = normal / np.maximum(np.linalg.norm(normal, axis=1, keepdims=True), 1e-12)
        cosine = np.einsum("ni,ni->n", self.face_normals[triangle], hits.directions)
        normal = np.where(cosine[:, None] > 0, -normal, normal)
        # A slanted surface stretches the ray's footprint in one direction: the root takes the middle of the two.
        footprint = hits.distance * ray_angle / np.sqrt(np.maximum(np.abs(cosine), 0.1))
        texel = self.textures.sample(triangle, blend(mesh.uv[corners]), footprint)
        base = srgb_to_linear(texel[:, :3]) * self.factors[material] * blend(mesh.colors[corners])
        return linear_to_srgb(base * lighting.arriving(normal)), texel[:, 3] >= self.cutoffs[material]


def normals(mesh: Mesh) -> tuple[Float[np.ndarray, "t 3"], Float[np.ndarray, "t 3 3"]]:
    """Unit normals of triangles and of their corners.

    A corner has the area-weighted mean over the triangles that meet there at less than the crease angle, whichever way
    round they are wound; vertices at the same place count as one.
    """
    cross = cross_products(mesh)
    face = cross / np.maximum(np.linalg.norm(cross, axis=1, keepdims=True), 1e-30)
    _, place = np.unique(mesh.vertices, axis=0, return_inverse=True)
    _, group, sizes = np.unique(place.reshape(-1)[mesh.triangles], return_inverse=True, return_counts=True)
    order = np.argsort(group, axis=None, kind="stable")
    size = np.repeat(sizes, sizes)
    start = np.repeat(np.cumsum(sizes) - sizes, sizes)
    triangle, rank = order // 3, np.arange(len(order)) - start
    total = np.zeros((len(order), 3))
    for step in range(min(sizes.max(), MAX_NEIGHBOURS)):
        mine = np.flatnonzero(size > step)
        other = triangle[start[mine] + (rank[mine] + step) % size[mine]]
        cosine = np.einsum("ni,ni->n", face[triangle[mine]], face[other])
        weight = np.where(np.abs(cosine) > np.cos(np.radians(CREASE_DEGREES)), np.sign(cosine), 0)
        total[mine] += weight[:, None] * cross[other]
    corner = np.empty_like(total)
    corner[order] = total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-30)
    return face, corner.reshape(-1, 3, 3)


def pixel_rays(
    c2w: Float[np.ndarray, "4 4"],
    intrinsics: Float[np.ndarray, " 4"],
    image_size: tuple[int, int],
    rays_per_side: int,
) -> Float[np.ndarray, "n 3"]:
    """Unit directions of an even grid of `rays_per_side` squared rays in each pixel, row by row of the fine grid."""
    (h, w), n = image_size, rays_per_side
    fx, fy, cx, cy = intrinsics
    x = ((np.arange(w * n) + 0.5) / n - cx) / fx
    y = ((np.arange(h * n) + 0.5) / n - cy) / fy
    y, x = (a.reshape(-1) for a in np.meshgrid(y, x, indexing="ij"))
    directions = np.einsum("ij,nj->ni", c2w[:3, :3], np.stack([x, y, np.ones_like(x)], axis=1))
    return directions / np.linalg.norm(directions, axis=1, keepdims=True)


def require_open3d():
    """The module open3d, or a sentence that says what to install."""
    try:
        import open3d
    except ModuleNotFoundError as error:
        raise UserError("Rendering meshes needs Open3D: pip install open3d.") from error
    except (ImportError, OSError) as error:
        package = next((p for library, p in SYSTEM_PACKAGES.items() if library in str(error)), "libusb-1.0-0")
        raise UserError(f"Open3D does not load ({error}). On Debian or Ubuntu: apt install {package}.") from error
    return open3d
