"""What a model was trained on, so that a scene outside of it can be told apart from a bad model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from data import Cameras, Normalization

FOV_SLACK = 1.0
"""Degrees by which a view angle may lie outside without a warning."""


@dataclass(frozen=True)
class TrainedRange:
    """The inputs that a checkpoint has seen in training."""

    views: tuple[int, int]
    """Fewest and most input views."""
    image_size: tuple[int, int]
    """Height and width in pixels."""
    fov_degrees: tuple[float, float]
    """Smallest and largest horizontal view angle."""
    normalization: Normalization = "focus"
    """How the world was moved and scaled."""
    background: str = "white"
    """Colour behind photos with alpha."""
    description: str = ""
    """The captures, in a few words."""
    steps: int = 0
    """Training steps."""
    holdout_every: int = 0
    """Every k-th photo of captures whose files keep none for tests was held out; 0: none was."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("views", "image_size", "fov_degrees"):
            if len(getattr(self, name)) != 2 or min(getattr(self, name)) <= 0:
                raise ValueError(f"trained {name} must be two numbers above 0, got {getattr(self, name)}")
        if self.normalization not in ("focus", "mean_pose", "none"):
            raise ValueError(f"unknown normalization {self.normalization!r}; expected focus, mean_pose or none")
        if not isinstance(self.holdout_every, int) or self.holdout_every < 0 or self.holdout_every == 1:
            raise ValueError(f"trained holdout_every must be 0 or a number from 2, got {self.holdout_every!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as checkpoints keep them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> TrainedRange:
        """The inverse of `to_dict`; unknown keys are refused."""
        unknown = set(values) - {f.name for f in fields(TrainedRange)}
        if unknown:
            raise ValueError(f"unknown setting {sorted(unknown)[0]!r}, perhaps of a newer version")
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return TrainedRange(**plain)

    def warnings_for(self, inputs: Cameras, count: int | None = None) -> tuple[str, ...]:
        """One line for each way in which input views lie outside of what the model was trained on.

        `count` is the number of input views where fewer cameras are given.
        """
        found = []
        fewest, most = self.views
        count = inputs.num_views if count is None else count
        if not fewest <= count <= most:
            found.append(f"{count} input views, but the model was trained with {fewest} to {most}")
        if tuple(inputs.image_size) != tuple(self.image_size):
            (h, w), (own_h, own_w) = inputs.image_size, self.image_size
            found.append(f"images of {h}x{w} pixels, but the model was trained at {own_h}x{own_w}")
        low, high = self.fov_degrees
        seen_low, seen_high = horizontal_fov(inputs)
        if seen_low < low - FOV_SLACK or seen_high > high + FOV_SLACK:
            found.append(
                f"horizontal view angles of {seen_low:.0f} to {seen_high:.0f} degrees, "
                f"but the model was trained with {low:.0f} to {high:.0f}"
            )
        return tuple(f"outside the trained range: {text}" for text in found)


def horizontal_fov(cameras: Cameras) -> tuple[float, float]:
    """Smallest and largest horizontal view angle in degrees: 2 atan(w / (2 fx))."""
    angles = torch.rad2deg(2 * torch.atan(cameras.image_size[1] / 2 / cameras.intrinsics[..., 0]))
    return float(angles.min()), float(angles.max())
