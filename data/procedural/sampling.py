"""The scene and the cameras of an index: random, and always the same."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from data.camera_layouts import look_at, spherical
from data.procedural.config import ProceduralConfig
from data.procedural.materials import Style, distant_lights
from data.procedural.objects import fitted, random_object, slab_below
from data.procedural.pictures import list_pictures
from data.procedural.rooms import random_room, room_cameras
from data.procedural.scene import ProceduralScene


class Sample(NamedTuple):
    """A scene with its cameras (OpenCV axes) and their horizontal field of view in degrees."""

    scene: ProceduralScene
    c2w: Float[np.ndarray, "v 4 4"]
    fov: float


def sample(config: ProceduralConfig, index: int, views: int) -> Sample:
    """Draw scene number `index`; its first views are the same however many are asked for."""
    rng, camera_rng = (np.random.default_rng([config.seed, index, stream]) for stream in (0, 1))
    style = Style.random(rng, len(list_pictures(config.pictures)) if config.pictures else 0)
    if config.mode == "room":
        scene, half = random_room(rng, config, style)
        fov = camera_rng.uniform(*config.fov_degrees)
        return Sample(scene, room_cameras(camera_rng, scene, half, views), fov)
    shapes = random_object(rng, config, style, int(rng.integers(config.shapes[0], config.shapes[1] + 1)))
    if rng.uniform() < config.ground_share:
        shapes = [*shapes, slab_below(rng, config, style, shapes)]
    shapes = fitted(shapes, rng.uniform(*config.radius_range))
    lights, ambient = distant_lights(rng, config)
    fov = camera_rng.uniform(*config.fov_degrees)
    return Sample(ProceduralScene(tuple(shapes), lights, ambient), _object_cameras(camera_rng, config, views), fov)


def _object_cameras(rng: np.random.Generator, config: ProceduralConfig, views: int) -> Float[np.ndarray, "v 4 4"]:
    """Cameras evenly over the part of a sphere between two elevations, looking near the origin."""
    draws = rng.uniform(size=(views, 6))
    low, high = np.sin(np.radians(config.elevation_range))
    directions = spherical(draws[:, 0] * 2 * np.pi, np.arcsin(low + draws[:, 1] * (high - low)))
    nearest, farthest = config.distance_range
    aims = (draws[:, 3:] - 0.5) * 12**0.5 * config.aim_jitter
    return look_at(directions * (nearest + draws[:, 2:3] * (farthest - nearest)), aims)
