"""Lens distortion: where the ray of an ideal pinhole lands on the distorted photo, and how to look at it straight."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

MAX_ZOOM = 4.0


@dataclass(frozen=True)
class Distortion:
    """How a lens bends rays, in coordinates divided by the focal length (so it does not change with the size).

    "opencv": k1 k2 p1 p2 k3 k4 k5 k6, where k4..k6 divide (OpenCV's rational model; the tail may be left out).
    "fisheye": k1 k2 k3 k4 of OpenCV's fisheye model, which bends rays even when all four are zero.
    "thin_prism_fisheye": k1 k2 p1 p2 k3 k4 sx1 sy1 of COLMAP's model, all of them applied to the fisheye's plane.
    "fov": omega in radians (Devernay and Faugeras, "Straight lines have to be straight", 2001).
    """

    model: Literal["none", "opencv", "fisheye", "thin_prism_fisheye", "fov"] = "none"
    parameters: tuple[float, ...] = ()

    @property
    def is_pinhole(self) -> bool:
        """Whether the photo needs no undistortion."""
        return self.model == "none" or (self.model == "opencv" and not any(self.parameters))


PINHOLE = Distortion()


def distort(points: Float[Tensor, "n 2"], distortion: Distortion) -> Float[Tensor, "n 2"]:
    """Move points from the ideal to the distorted plane, both at depth 1."""
    if distortion.is_pinhole:
        return points
    if distortion.model == "fisheye":
        from kornia.geometry.camera import distort_points_kannala_brandt

        parameters = points.new_tensor([1.0, 1.0, 0.0, 0.0, *_padded(distortion.parameters, 4)])
        return distort_points_kannala_brandt(points, parameters.expand(len(points), 8))
    if distortion.model == "thin_prism_fisheye":
        return _distort_thin_prism_fisheye(points, distortion.parameters)
    if distortion.model == "fov":
        (omega,) = distortion.parameters
        radius = points.norm(dim=-1, keepdim=True).clamp_min(1e-12)
        return points * torch.atan(2 * math.tan(omega / 2) * radius) / (omega * radius)
    from kornia.geometry.calibration import distort_points

    parameters = points.new_tensor(_padded(distortion.parameters, 8))
    return distort_points(points, torch.eye(3).to(points), parameters)


@lru_cache(maxsize=4096)
def zoom_to_fill(
    distortion: Distortion, intrinsics: tuple[float, float, float, float], image_size: tuple[int, int]
) -> float:
    """Smallest zoom, at least 1, at which the straightened photo has no empty pixels; raises ValueError if none has.

    The focal lengths of the straightened photo are the photo's own times this number; size and centre stay.
    """
    if distortion.is_pinhole:
        return 1.0
    border = _border(intrinsics, image_size)
    if _fills(distortion, border, intrinsics, image_size, 1.0):
        return 1.0
    low, high = 1.0, MAX_ZOOM
    if not _fills(distortion, border, intrinsics, image_size, high):
        raise ValueError("the distortion numbers bend the photo back onto itself")
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if _fills(distortion, border, intrinsics, image_size, middle) else (middle, high)
    return high


def undistort(
    image: Float[Tensor, "c h w"],
    distortion: Distortion,
    intrinsics: tuple[float, float, float, float],
    zoom: float,
) -> Float[Tensor, "c h w"]:
    """The photo as a pinhole of the same size and centre sees it, with focal lengths `zoom` times as long."""
    _, h, w = image.shape
    fx, fy, cx, cy = intrinsics
    y, x = torch.meshgrid(
        torch.arange(h, dtype=torch.float64) + 0.5, torch.arange(w, dtype=torch.float64) + 0.5, indexing="ij"
    )
    ideal = torch.stack([(x - cx) / (fx * zoom), (y - cy) / (fy * zoom)], dim=-1).reshape(-1, 2)
    at = distort(ideal, distortion) * ideal.new_tensor([fx, fy]) + ideal.new_tensor([cx, cy])
    # Pixel centres lie at +0.5 and the photo spans [0, w], which is what grid_sample calls align_corners=False.
    grid = (at * 2 / at.new_tensor([w, h]) - 1).to(image).reshape(1, h, w, 2)
    straight = F.grid_sample(image[None], grid, mode="bicubic", padding_mode="border", align_corners=False)
    return straight[0].clamp(0, 1)


def _distort_thin_prism_fisheye(points: Float[Tensor, "n 2"], parameters: tuple[float, ...]) -> Float[Tensor, "n 2"]:
    """COLMAP's THIN_PRISM_FISHEYE: radial, tangential and prism terms on points whose radius is their ray's angle."""
    k1, k2, p1, p2, k3, k4, s1, s2 = parameters
    radius = points.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    points = points * torch.atan(radius) / radius
    u, v = points.unbind(-1)
    r2 = u * u + v * v
    radial = 1 + r2 * (k1 + r2 * (k2 + r2 * (k3 + r2 * k4)))
    x = u * radial + 2 * p1 * u * v + p2 * (r2 + 2 * u * u) + s1 * r2
    y = v * radial + 2 * p2 * u * v + p1 * (r2 + 2 * v * v) + s2 * r2
    return torch.stack([x, y], -1)


def _border(intrinsics: tuple[float, float, float, float], image_size: tuple[int, int]) -> Float[Tensor, "n 2"]:
    """Ideal positions of the outermost pixel centres, at most 64 a side."""
    (fx, fy, cx, cy), (h, w) = intrinsics, image_size
    x = torch.linspace(0.5, w - 0.5, min(w, 64), dtype=torch.float64)
    y = torch.linspace(0.5, h - 0.5, min(h, 64), dtype=torch.float64)
    sides = [torch.stack([x, torch.full_like(x, v)], -1) for v in (0.5, h - 0.5)]
    sides += [torch.stack([torch.full_like(y, u), y], -1) for u in (0.5, w - 0.5)]
    points = torch.cat(sides)
    return (points - points.new_tensor([cx, cy])) / points.new_tensor([fx, fy])


def _fills(
    distortion: Distortion,
    border: Float[Tensor, "n 2"],
    intrinsics: tuple[float, float, float, float],
    image_size: tuple[int, int],
    zoom: float,
) -> bool:
    """Whether all rays up to the border land on the photo, farther out the farther out they are."""
    (fx, fy, cx, cy), (h, w) = intrinsics, image_size
    steps = torch.linspace(0, 1, 33, dtype=torch.float64)
    rays = border[:, None] / zoom * steps[:, None]
    bent = distort(rays.reshape(-1, 2), distortion).reshape(rays.shape)
    if not bool(torch.isfinite(bent).all()):
        return False
    rises = bent.norm(dim=-1).diff(dim=-1) > -1e-9
    at = bent[:, -1] * bent.new_tensor([fx, fy]) + bent.new_tensor([cx, cy])
    inside = (at >= 0) & (at <= at.new_tensor([w, h]))
    return bool(rises.all() and inside.all())


def _padded(parameters: tuple[float, ...], count: int) -> list[float]:
    return [*parameters, *[0.0] * (count - len(parameters))]
