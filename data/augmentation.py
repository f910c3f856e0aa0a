"""Training scenes varied at random: the world turned, rolled, scaled or mirrored, and the colours changed.

Cameras follow the world, and one draw holds for all views of a scene, so that it stays a scene that could be real.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from data.background import Color
from data.config import DataConfig
from data.views import Views

MOST_HUE = math.radians(60)
"""How far hues turn (radians) at a colour jitter of 1."""
LUMINANCE = (0.2126, 0.7152, 0.0722)  # Rec. ITU-R BT.709


class Augmentation(NamedTuple):
    """How one scene of a batch is varied; angles in radians."""

    angle: float = 0.0
    """Turn about the up axis."""
    roll: float = 0.0
    """Roll out of the level ..."""
    roll_axis: float = 0.0
    """... about a horizontal axis in this direction."""
    scale: float = 1.0
    mirrored: bool = False
    brightness: float = 1.0
    contrast: float = 1.0
    saturation: float = 1.0
    hue: float = 0.0

    @property
    def changes_colors(self) -> bool:
        """Whether any colour is changed."""
        return (self.brightness, self.contrast, self.saturation, self.hue) != (1, 1, 1, 0)


def draw_augmentation(rng: np.random.Generator, config: DataConfig) -> Augmentation:
    """Draw what the configuration asks for; what is switched off stays as it is."""
    drawn: dict[str, Any] = {"angle": rng.uniform(0, 2 * math.pi) if config.rotate_world else 0.0}
    drawn["scale"] = _factor(rng, config.scale_jitter)
    if config.flip_share:
        drawn["mirrored"] = bool(rng.uniform() < config.flip_share)
    if config.roll_degrees:
        drawn["roll"] = math.radians(rng.uniform(-config.roll_degrees, config.roll_degrees))
        drawn["roll_axis"] = rng.uniform(0, math.pi)
    if config.color_jitter:
        drawn |= {name: _factor(rng, config.color_jitter) for name in ("brightness", "contrast", "saturation")}
        drawn["hue"] = config.color_jitter * rng.uniform(-MOST_HUE, MOST_HUE)
    return Augmentation(**drawn)


def augment(views: Views, augmentation: Augmentation, up: Literal["y", "z"], background: Color) -> Views:
    """The views of one scene after the world has been moved and the colours changed; the background keeps its colour.

    `up` is the axis that points up.
    """
    moved = move_world(views, augmentation, up)
    if not augmentation.changes_colors:
        return moved
    return replace(moved, images=change_colors(moved.images, moved.alpha, augmentation, background))


def move_world(views: Views, augmentation: Augmentation, up: Literal["y", "z"] = "z") -> Views:
    """Turn, roll, scale and mirror the world about the origin; cameras follow, and pixels if it is mirrored.

    A mirrored world is seen mirrored from left to right by the mirrored cameras, whose x axes are turned around once
    more, because a camera itself has no mirror image.
    """
    similarity = world_similarity(augmentation, up)
    if torch.equal(similarity, torch.eye(4, dtype=torch.float64)):
        return views
    moved = views.transform(similarity)
    if views.world_to_scene is not None:
        moved = replace(moved, world_to_scene=similarity @ views.world_to_scene)
    if not augmentation.mirrored:
        return moved
    fx, fy, cx, cy = moved.intrinsics.unbind(-1)
    return replace(
        moved,
        c2w=moved.c2w * moved.c2w.new_tensor([-1.0, 1.0, 1.0, 1.0]),
        intrinsics=torch.stack([fx, fy, moved.image_size[1] - cx, cy], dim=-1),
        images=moved.images.flip(-1),
        alpha=None if moved.alpha is None else moved.alpha.flip(-1),
    )


def world_similarity(augmentation: Augmentation, up: Literal["y", "z"]) -> Float64[Tensor, "4 4"]:
    """The matrix that mirrors (x), then turns, rolls and scales the world."""
    mirror = torch.diag(torch.tensor([-1.0 if augmentation.mirrored else 1.0, 1.0, 1.0], dtype=torch.float64))
    azimuth = augmentation.roll_axis
    if up == "z":
        upright, level = (0.0, 0.0, 1.0), (math.cos(azimuth), math.sin(azimuth), 0.0)
    else:
        upright, level = (0.0, 1.0, 0.0), (math.cos(azimuth), 0.0, math.sin(azimuth))
    turn = rotation(level, augmentation.roll) @ rotation(upright, augmentation.angle)
    similarity = torch.eye(4, dtype=torch.float64)
    similarity[:3, :3] = augmentation.scale * turn @ mirror
    return similarity


def rotation(axis: tuple[float, float, float], angle: float) -> Float64[Tensor, "3 3"]:
    """Rotation by an angle (radians) about a unit axis, after Rodrigues."""
    x, y, z = axis
    cross = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
    return torch.eye(3, dtype=torch.float64) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


def change_colors(
    images: Float[Tensor, "v 3 h w"], alpha: Float[Tensor, "v 1 h w"] | None, augmentation: Augmentation, behind: Color
) -> Float[Tensor, "v 3 h w"]:
    """Change the colours of what was laid over a background with `alpha`, and lay it over the same background again.

    All changes are linear, so they can be made on colours that alpha has been multiplied into.
    """
    matrix, shift = color_change(augmentation)
    cover = torch.ones_like(images[:, :1]) if alpha is None else alpha
    rest = images.new_tensor(behind)[:, None, None] * (1 - cover)
    changed = torch.einsum("ij,vjhw->vihw", matrix.to(images), images - rest) + shift * cover
    return torch.minimum(changed.clamp(min=0), cover) + rest


def color_change(augmentation: Augmentation) -> tuple[Float64[Tensor, "3 3"], float]:
    """Matrix and shift on colours in 0..1: hue turned about grey, then saturation, contrast about 0.5, brightness."""
    grey = torch.tensor(LUMINANCE, dtype=torch.float64).expand(3, 3)
    saturate = augmentation.saturation * torch.eye(3, dtype=torch.float64) + (1 - augmentation.saturation) * grey
    diagonal = 1 / math.sqrt(3)
    turn = rotation((diagonal, diagonal, diagonal), augmentation.hue)
    shift = augmentation.brightness * 0.5 * (1 - augmentation.contrast)
    return augmentation.brightness * augmentation.contrast * saturate @ turn, shift


def _factor(rng: np.random.Generator, jitter: float) -> float:
    reach = math.log1p(jitter)
    return math.exp(rng.uniform(-reach, reach))
