"""Writes posed pictures of a mesh as a scene folder: transforms.json (nerfstudio's dialect) and RGBA pictures."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from data.camera_layouts import Layout, place_cameras
from data.errors import UserError
from data.made_scenes import describe_cameras, make_scene
from data.meshes.loading import Up, load_mesh
from data.meshes.rendering import Lighting, MeshRenderer


@dataclass(frozen=True)
class MeshSceneConfig:
    """What to render of a mesh; ranges are drawn from evenly."""

    views: int = 24
    """Pictures per mesh."""
    size: tuple[int, int] = (128, 128)
    """Height and width of the pictures in pixels."""
    layout: Layout = "random-sphere"
    """Where cameras stand: random on the sphere, on one circle, or evenly along a spiral."""
    fov_range: tuple[float, float] = (44.0, 57.0)
    """Horizontal field of view in degrees, one draw per mesh."""
    radius_range: tuple[float, float] = (2.5, 2.9)
    """Distance of cameras from the middle of the mesh in world units, one draw per view."""
    elevation_range: tuple[float, float] = (-20.0, 80.0)
    """Height of cameras in degrees above the horizon."""
    scale_range: tuple[float, float] = (0.9, 1.15)
    """Bounding radius of the mesh in world units, one draw per mesh."""
    aim_jitter: float = 0.03
    """Standard deviation of the point that cameras look at, in world units."""
    rays_per_side: int = 2
    """Rays along each side of a pixel: 2 means 4 rays a pixel."""
    up: Up = "auto"
    """The axis of the mesh file that points up; auto: y, but z for .ply."""
    seed: int = 0
    """All random draws follow from this and the scene's name."""

    def __post_init__(self) -> None:
        if self.views < 1:
            raise UserError(f"{self.views} views were asked for; give at least 1.")
        if not 1 <= self.rays_per_side <= 16:
            raise UserError(f"rays_per_side is {self.rays_per_side}; give a number from 1 to 16.")
        if not 1 <= min(self.size) <= max(self.size) <= 8192:
            raise UserError(f"The size is {self.size[0]} x {self.size[1]} pixels; each side must be from 1 to 8192.")
        if self.seed < 0:
            raise UserError(f"The seed is {self.seed}; give 0 or a positive number.")
        check_range("fov_range", self.fov_range, 1, 170)
        check_range("radius_range", self.radius_range, 0.01, 100)
        check_range("elevation_range", self.elevation_range, -90, 90)
        check_range("scale_range", self.scale_range, 0.001, 100)
        check_range("aim_jitter", (0, self.aim_jitter), 0, 100)


def write_mesh_scene(
    mesh_path: Path,
    folder: Path,
    name: str,
    config: MeshSceneConfig,
    overwrite: bool = False,
    on_view: Callable[[], object] = lambda: None,
) -> bool:
    """Render a mesh into the scene `folder`, which appears when complete; False if it was there, made the same way.

    `on_view` is called after each picture.
    """
    recipe = describe_recipe(mesh_path, name, config)
    return make_scene(folder, recipe, overwrite, lambda images: render_views(mesh_path, images, name, config, on_view))


def render_views(
    mesh_path: Path, images: Path, name: str, config: MeshSceneConfig, on_view: Callable[[], object]
) -> dict[str, Any]:
    """Write all pictures and return the cameras as transforms.json has them."""
    mesh = load_mesh(mesh_path, config.up)
    rng = np.random.default_rng([config.seed, zlib.crc32(name.encode())])
    renderer = MeshRenderer(mesh.fit_sphere(rng.uniform(*config.scale_range)))
    lighting = Lighting.random(rng)
    h, w = config.size
    focal = w / 2 / np.tan(np.radians(rng.uniform(*config.fov_range)) / 2)
    intrinsics = np.array([focal, focal, w / 2, h / 2])
    c2w = place_cameras(
        config.layout, config.views, config.radius_range, config.elevation_range, config.aim_jitter, rng
    )
    for index, matrix in enumerate(c2w):
        picture = renderer.render(matrix, intrinsics, config.size, lighting, config.rays_per_side)
        Image.fromarray(picture).save(images / f"{index:04d}.png")
        on_view()
    return describe_cameras(c2w, intrinsics, config.size)


def describe_recipe(mesh_path: Path, name: str, config: MeshSceneConfig) -> dict[str, Any]:
    """All that decides how the scene comes out, as JSON gives it back."""
    digest = hashlib.sha256(mesh_path.read_bytes()).hexdigest() if mesh_path.is_file() else ""
    return json.loads(json.dumps({"mesh": mesh_path.name, "mesh_sha256": digest, "name": name, **asdict(config)}))


def check_range(name: str, given: tuple[float, float], low: float, high: float) -> None:
    """Refuse a range that is not ordered or leaves [low, high]."""
    if not low <= given[0] <= given[1] <= high:
        name = name.replace("_", "-")
        raise UserError(
            f"--{name} is {given[0]:g} {given[1]:g}; give numbers from {low:g} to {high:g}, the lower first."
        )
