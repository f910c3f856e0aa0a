"""Honest hints: in which ways a camera, or a scene, is outside of what the model knows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from apps.viewer.frames import Shot
from apps.viewer.sizes import Size
from data import Cameras
from nvs import TrainedRange
from nvs.trained_range import FOV_SLACK

NEAR, FAR = 0.7, 1.4
"""A camera at less or more than so many times the distance of the input cameras is told of."""
TURN = 35.0
"""Degrees, seen from the point that all look at, between a camera and the nearest input camera."""
AWAY = 45.0
"""Degrees by which a camera may look past that point."""


@dataclass(frozen=True)
class Surroundings:
    """The input cameras of a scene as seen from the point that they look at."""

    to_focus: Float64[Tensor, "4 4"]
    directions: Float64[Tensor, "n 3"]
    """Unit vectors from that point to the cameras."""
    distances: tuple[float, float]
    """Smallest and largest distance of the cameras."""
    trained: TrainedRange | None

    @staticmethod
    def around(cameras: Cameras, to_focus: Float64[Tensor, "4 4"], trained: TrainedRange | None) -> Surroundings:
        """Look at input cameras; `to_focus` moves them so that the origin is the point that they look at."""
        positions = cameras.positions.cpu().double() @ to_focus[:3, :3].mT + to_focus[:3, 3]
        lengths = positions.norm(dim=-1).clamp(min=1e-9)
        return Surroundings(
            to_focus, positions / lengths[:, None], (float(lengths.min()), float(lengths.max())), trained
        )

    @property
    def centre(self) -> list[float]:
        """The point that the cameras look at, in their own frame."""
        return self.to_focus.inverse()[:3, 3].tolist()

    @property
    def up(self) -> list[float]:
        """The up direction in the frame of the cameras, a unit vector."""
        up = self.to_focus[2, :3]
        return (up / up.norm()).tolist()

    @property
    def radius(self) -> float:
        """Mean distance of the nearest and the farthest camera, in the cameras' own units."""
        scale = float(torch.linalg.det(self.to_focus[:3, :3])) ** (1 / 3)
        return sum(self.distances) / 2 / scale

    def notes(self, shot: Shot, size: Size) -> list[str]:
        """One short sentence for each way in which a camera is outside of what the model has seen."""
        found = []
        position = self.to_focus[:3, :3] @ shot.c2w[:3, 3] + self.to_focus[:3, 3]
        forward = self.to_focus[:3, :3] @ shot.c2w[:3, 2]
        distance = float(position.norm())
        low, high = self.distances
        if distance < NEAR * low:
            found.append("The camera is closer than any photo was taken from.")
        if distance > FAR * high:
            found.append("The camera is farther away than any photo was taken from.")
        if distance > 1e-6:
            nearest = float((self.directions @ (position / distance)).max().clamp(-1, 1))
            angle = math.degrees(math.acos(nearest))
            if angle > TURN:
                found.append(f"The nearest photo was taken {angle:.0f} degrees to the side: the model has to guess.")
            aside = float((-(position / distance) @ (forward / forward.norm())).clamp(-1, 1))
            if math.degrees(math.acos(aside)) > AWAY:
                found.append("The camera looks away from the scene.")
        return found + self._lens_notes(shot, size)

    def _lens_notes(self, shot: Shot, size: Size) -> list[str]:
        if self.trained is None:
            return []
        found = []
        low, high = self.trained.fov_degrees
        if not low - FOV_SLACK <= shot.fov <= high + FOV_SLACK:
            found.append(
                f"The field of view is {shot.fov:.0f} degrees; the model was trained with {low:.0f} to {high:.0f}."
            )
        if tuple(size) != tuple(self.trained.image_size):
            (h, w), (own_h, own_w) = size, self.trained.image_size
            found.append(f"The picture has {h}x{w} pixels; the model was trained at {own_h}x{own_w}.")
        return found
