"""From a capture's own world to the frame that models see: a similarity fitted on cameras, in double precision."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float64

Normalization = Literal["focus", "mean_pose", "none"]
Matrix4 = Float64[np.ndarray, "4 4"]
Poses = Float64[np.ndarray, "n 4 4"]
Vector = Float64[np.ndarray, " 3"]

FOCUS_DISTANCE = 2.7
MEAN_POSE_EXTENT = 1 / 1.35
# An extent below this part of the coordinates is rounding noise: enlarging it to the usual size would be harmful.
NO_EXTENT = 1e-6
# Axes that spread less than this (mean squared sine, about 2 degrees to either side) do not tell where they meet.
NO_PARALLAX = 1e-3


def fit(c2w: Poses, normalization: Normalization) -> Matrix4:
    """The world-to-scene similarity for these cameras (OpenCV axes, all finite).

    "focus": the point nearest to all optical axes goes to the origin, up to +z, the mean camera distance to 2.7.
    "mean_pose": the mean camera becomes the identity, the largest coordinate of a camera centre 1/1.35.
    "none": the capture's world is kept.
    """
    if normalization == "none":
        return np.eye(4)
    if normalization == "mean_pose":
        return _mean_pose(c2w)
    if normalization == "focus":
        return _focus(c2w)
    raise ValueError(f"unknown normalization {normalization!r}; expected focus, mean_pose or none")


def transform_poses(similarity: Matrix4, c2w: Poses) -> Poses:
    """Move cameras by a similarity; their rotations stay orthonormal."""
    scale = np.cbrt(np.linalg.det(similarity[:3, :3]))
    moved = similarity @ c2w
    moved[:, :3, :3] /= scale
    return moved


def focus_point(c2w: Poses) -> tuple[Vector, bool]:
    """The point nearest to all optical axes (least squares), and whether the axes spread enough to tell it.

    The point x minimises the sum of |(I - d d^T)(x - p)|^2 over cameras at p looking along d; without enough spread it
    is the middle of the cameras.
    """
    positions, forward = c2w[:, :3, 3], c2w[:, :3, 2]
    center = positions.mean(0)
    projections = np.eye(3) - forward[:, :, None] * forward[:, None, :]
    a = projections.mean(0)
    b = np.einsum("nij,nj->i", projections, positions - center) / len(c2w)
    values, vectors = np.linalg.eigh(a)
    if values[0] < NO_PARALLAX:
        return center, False
    return center + vectors @ ((vectors.T @ b) / values), True


def part_meeting_behind(c2w: Poses) -> float:
    """The part (0..1) of the cameras that have the focus point behind them; 0 where there is no such point."""
    point, is_known = focus_point(c2w)
    if not is_known:
        return 0.0
    depth = np.einsum("nj,nj->n", point - c2w[:, :3, 3], c2w[:, :3, 2])
    return float(np.mean(depth < 0))


def _focus(c2w: Poses) -> Matrix4:
    positions, mean_forward = c2w[:, :3, 3], c2w[:, :3, 2].mean(0)
    point, is_known = focus_point(c2w)
    looks_one_way = np.linalg.norm(mean_forward) > 0.5
    if looks_one_way and (not is_known or part_meeting_behind(c2w) > 0.5):
        # Nothing tells the distance: take a point ahead, as far off as the cameras' own spread suggests.
        center = positions.mean(0)
        spread = np.linalg.norm(positions - center, axis=1).mean()
        ahead = 4 * spread if _has_extent(spread, positions) else FOCUS_DISTANCE
        point = center + ahead * _unit(mean_forward, c2w[0, :3, 2])
    distance = np.linalg.norm(positions - point, axis=1).mean()
    scale = FOCUS_DISTANCE / distance if _has_extent(distance, positions) else 1.0
    return _similarity(scale, _rotation_to_z(_up(c2w)), point)


def _mean_pose(c2w: Poses) -> Matrix4:
    positions = c2w[:, :3, 3]
    forward = _unit(c2w[:, :3, 2].mean(0), c2w[0, :3, 2])
    down = c2w[:, :3, 1].mean(0)
    right = np.cross(down, forward)
    if np.linalg.norm(right) < 1e-3:
        forward, down = c2w[0, :3, 2], c2w[0, :3, 1]
        right = np.cross(down, forward)
    right = right / np.linalg.norm(right)
    rotation = np.stack([right, np.cross(forward, right), forward])
    center = positions.mean(0)
    extent = np.abs((positions - center) @ rotation.T).max()
    scale = MEAN_POSE_EXTENT / extent if _has_extent(extent, positions) else 1.0
    return _similarity(scale, rotation, center)


def _up(c2w: Poses) -> Vector:
    """The direction most orthogonal to all x axes, on the side of the cameras' own up.

    Where the x axes leave it open (one photo, cameras in a row, cameras rolled at will) it is the mean up direction.
    """
    x_axes, own_up = c2w[:, :3, 0], -c2w[:, :3, 1].mean(0)
    values, vectors = np.linalg.eigh(x_axes.T @ x_axes / len(c2w))
    side = own_up if np.linalg.norm(own_up) > 1e-3 else -c2w[:, :3, 2].mean(0)
    if np.linalg.norm(side) < 1e-3:
        side = -c2w[0, :3, 1]
    if values[1] < 0.01:
        x = vectors[:, 2]
        return _unit(side - x * (x @ side), -c2w[0, :3, 1])
    if values[0] > 0.1:
        return _unit(side, -c2w[0, :3, 1])
    up = vectors[:, 0]
    if abs(up @ side) < 1e-3:
        side = -c2w[:, :3, 2].mean(0)  # cameras that look straight down or up have no up of their own
    return -up if up @ side < 0 else up


def _rotation_to_z(up: Vector) -> Float64[np.ndarray, "3 3"]:
    """The smallest rotation that takes a unit vector to +z, so that a world that is level already stays as it is."""
    cosine = up[2]
    if cosine < -1 + 1e-9:
        return np.diag([1.0, -1.0, -1.0])
    axis = np.cross(up, [0.0, 0.0, 1.0])
    cross = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
    return np.eye(3) + cross + cross @ cross / (1 + cosine)


def _similarity(scale: float, rotation: np.ndarray, origin: np.ndarray) -> Matrix4:
    """x -> scale * rotation (x - origin) as a matrix."""
    matrix = np.eye(4)
    matrix[:3, :3] = scale * rotation
    matrix[:3, 3] = -scale * rotation @ origin
    return matrix


def _has_extent(extent: float, positions: np.ndarray) -> bool:
    return bool(extent > max(NO_EXTENT * np.abs(positions).max(), 1e-300))


def _unit(vector: np.ndarray, fallback: np.ndarray) -> Vector:
    length = np.linalg.norm(vector)
    return vector / length if length > 1e-3 else fallback / np.linalg.norm(fallback)
