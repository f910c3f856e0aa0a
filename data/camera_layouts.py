"""Where to put cameras around an object at the origin of a z-up world."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float

Layout = Literal["random-sphere", "orbit", "fibonacci"]


def place_cameras(
    layout: Layout,
    views: int,
    radius_range: tuple[float, float],
    elevation_range: tuple[float, float],
    aim_jitter: float,
    rng: np.random.Generator,
) -> Float[np.ndarray, "v 4 4"]:
    """Camera-to-world matrices (OpenCV axes, float64) of `views` cameras that look near the origin.

    Elevations are degrees above the horizon, radii world units; `aim_jitter` is the standard deviation of the point
    looked at, in world units. An orbit has one radius and one aim for all its cameras, so that it moves evenly.
    """
    directions = LAYOUTS[layout](views, elevation_range, rng)
    draws = 1 if layout == "orbit" else views
    radii = rng.uniform(*radius_range, size=(draws, 1))
    targets = rng.normal(size=(draws, 3)) * aim_jitter
    return look_at(directions * radii, np.broadcast_to(targets, (views, 3)))


def random_sphere(views: int, elevation_range: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """Unit directions, uniform over the part of the sphere between two elevations (degrees)."""
    low, high = np.sin(np.radians(elevation_range))
    return spherical(rng.uniform(0, 2 * np.pi, views), np.arcsin(rng.uniform(low, high, views)))


def orbit(views: int, elevation_range: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """Unit directions on one full circle at the middle elevation (degrees), from a random start."""
    azimuth = rng.uniform(0, 2 * np.pi) + np.arange(views) * (2 * np.pi / views)
    return spherical(azimuth, np.full(views, np.radians(np.mean(elevation_range))))


def fibonacci(views: int, elevation_range: tuple[float, float], rng: np.random.Generator) -> np.ndarray:
    """Unit directions spread evenly between two elevations (degrees) on a golden-angle spiral with a random start."""
    low, high = np.sin(np.radians(elevation_range))
    z = low + (high - low) * (np.arange(views) + 0.5) / views
    golden_angle = np.pi * (3 - np.sqrt(5))
    return spherical(rng.uniform(0, 2 * np.pi) + golden_angle * np.arange(views), np.arcsin(z))


LAYOUTS = {"random-sphere": random_sphere, "orbit": orbit, "fibonacci": fibonacci}


def spherical(azimuth: Float[np.ndarray, " v"], elevation: Float[np.ndarray, " v"]) -> Float[np.ndarray, "v 3"]:
    """Unit directions from angles in radians, z up."""
    flat = np.cos(elevation)
    return np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), np.sin(elevation)], axis=1)


def look_at(positions: Float[np.ndarray, "v 3"], targets: Float[np.ndarray, "v 3"]) -> Float[np.ndarray, "v 4 4"]:
    """Camera-to-world matrices (OpenCV axes) with the horizon level; straight up or down, y of the world is up."""
    forward = targets - positions
    forward = forward / np.linalg.norm(forward, axis=1, keepdims=True)
    vertical = np.abs(forward[:, 2:]) > 1 - 1e-9
    up = np.where(vertical, [[0.0, 1.0, 0.0]], [[0.0, 0.0, 1.0]])
    right = np.cross(forward, up)
    right = right / np.linalg.norm(right, axis=1, keepdims=True)
    down = np.cross(forward, right)
    c2w = np.tile(np.eye(4), (len(positions), 1, 1))
    c2w[:, :3, :] = np.stack([right, down, forward, positions], axis=2)
    return c2w
