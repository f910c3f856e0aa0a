"""What procedural scenes are like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from data.errors import UserError

Mode = Literal["object", "room"]

MAX_SHAPES = 24
"""Most shapes asked for in an object or on the floor of a room."""


@dataclass(frozen=True)
class ProceduralConfig:
    """What random scenes show, and how they are seen; ranges are drawn from evenly. The world's z axis points up."""

    mode: Mode = "object"
    """object: one thing of about radius 1 around the origin, white behind it. room: things on a floor in the open or
    between walls, with the cameras among them."""
    seed: int = 0
    """All random draws follow from this and a scene's index."""
    shapes: tuple[int, int] = (2, 8)
    """Fewest and most shapes of an object (before mirroring), or things in a room."""
    cut_share: float = 0.35
    """Share (0..1) of shapes from which another shape, or the half beyond a plane, is cut away."""
    symmetry_share: float = 0.5
    """Share (0..1) of objects that are mirrored, or repeated around an axis."""
    ground_share: float = 0.15
    """Share (0..1) of objects that stand on a slab or disc."""
    radius_range: tuple[float, float] = (0.9, 1.1)
    """Bounding radius of an object in world units."""
    distance_range: tuple[float, float] = (2.5, 2.9)
    """Distance of cameras from the origin in world units, one draw per view (objects only)."""
    elevation_range: tuple[float, float] = (-30.0, 80.0)
    """Height of cameras in degrees above the horizon (objects only)."""
    aim_jitter: float = 0.05
    """Standard deviation of the point that cameras look at, in world units (objects only)."""
    fov_range: tuple[float, float] = (35.0, 60.0)
    """Horizontal field of view in degrees, one draw per scene."""
    room_fov_range: tuple[float, float] = (50.0, 80.0)
    """The same in room mode."""
    lights: tuple[int, int] = (1, 3)
    """Fewest and most lights besides the even light from all sides."""
    shadows: bool = True
    """Whether lights throw shadows."""
    pictures: str | None = None
    """Folder of pictures that serve as textures, besides those made of noise, stripes, checks, spots and gradients."""
    picture_share: float = 0.4
    """Share (0..1) of textures that are taken from the pictures, where there are any."""
    background: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """Colour (0..1) behind objects; rooms have their own sky. In training, data.background takes its place."""
    rays_per_side: int = 2
    """Rays along each side of a pixel: 2 means 4 rays a pixel."""

    @property
    def fov_degrees(self) -> tuple[float, float]:
        """Smallest and largest horizontal field of view of the chosen mode."""
        return self.room_fov_range if self.mode == "room" else self.fov_range

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn."""
        if self.mode not in ("object", "room"):
            raise UserError(f"There is no mode {self.mode}; choose object or room.")
        if self.seed < 0:
            raise UserError(f"The seed is {self.seed}; give 0 or a positive number.")
        if not 1 <= self.rays_per_side <= 16:
            raise UserError(f"rays_per_side is {self.rays_per_side}; give a number from 1 to 16.")
        for name, low, high in (
            ("shapes", 1, MAX_SHAPES),
            ("lights", 0, 4),
            ("radius_range", 0.1, 10),
            ("distance_range", 0.2, 100),
            ("elevation_range", -90, 90),
            ("fov_range", 1, 150),
            ("room_fov_range", 1, 150),
        ):
            first, last = getattr(self, name)
            if not low <= first <= last <= high:
                raise UserError(f"{name} is {first:g} {last:g}; give numbers from {low} to {high}, the lower first.")
        for name in ("cut_share", "symmetry_share", "ground_share", "picture_share", "aim_jitter"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} is {getattr(self, name):g}; give a number from 0 to 1.")
        if not all(0 <= c <= 1 for c in self.background):
            raise UserError(f"The background is {self.background}; give three numbers from 0 to 1.")
        if self.distance_range[0] <= self.radius_range[1]:
            raise UserError(
                f"Cameras {self.distance_range[0]:g} from the origin would be inside objects of radius "
                f"{self.radius_range[1]:g}; raise distance_range or lower radius_range."
            )
