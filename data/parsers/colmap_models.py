"""COLMAP's sparse models in memory: cameras, images, and what its lens models mean here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from data.distortion import PINHOLE, Distortion
from data.frames import BadFrame, Numbers
from data.parsers.values import MAX_SIDE


class LensModel(NamedTuple):
    """A lens model by its name, and how many numbers describe it."""

    name: str
    count: int


# By the number under which binary files know them (COLMAP 4.2).
LENS_MODELS = {
    0: LensModel("SIMPLE_PINHOLE", 3),
    1: LensModel("PINHOLE", 4),
    2: LensModel("SIMPLE_RADIAL", 4),
    3: LensModel("RADIAL", 5),
    4: LensModel("OPENCV", 8),
    5: LensModel("OPENCV_FISHEYE", 8),
    6: LensModel("FULL_OPENCV", 12),
    7: LensModel("FOV", 5),
    8: LensModel("SIMPLE_RADIAL_FISHEYE", 4),
    9: LensModel("RADIAL_FISHEYE", 5),
    10: LensModel("THIN_PRISM_FISHEYE", 12),
    11: LensModel("RAD_TAN_THIN_PRISM_FISHEYE", 16),
    12: LensModel("SIMPLE_DIVISION", 4),
    13: LensModel("DIVISION", 5),
    14: LensModel("SIMPLE_FISHEYE", 3),
    15: LensModel("FISHEYE", 4),
    16: LensModel("EUCM", 6),
    17: LensModel("EQUIRECTANGULAR", 2),
}
ONE_FOCAL_LENGTH = ("SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE")
ONE_FOCAL_LENGTH += ("SIMPLE_FISHEYE",)
POLYNOMIAL = ("SIMPLE_RADIAL", "RADIAL", "OPENCV", "FULL_OPENCV")
FISHEYE = ("OPENCV_FISHEYE", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE", "SIMPLE_FISHEYE", "FISHEYE")
READ = ("SIMPLE_PINHOLE", "PINHOLE", *POLYNOMIAL, *FISHEYE, "THIN_PRISM_FISHEYE", "FOV")
# Below this (radians), the FOV model bends by less than a thousandth of a pixel.
NO_FOV = 1e-4


@dataclass(frozen=True)
class Camera:
    """A camera as the model states it: lens model, size (h, w) in pixels, numbers in COLMAP's order."""

    model: str
    image_size: tuple[int, int]
    parameters: tuple[float, ...]


@dataclass(frozen=True)
class Photo:
    """A photo as the model states it; `problem` says why the entry cannot be used."""

    name: str
    camera: int = 0
    quaternion: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0)  # w x y z, world to camera
    translation: tuple[float, ...] = (0.0, 0.0, 0.0)
    problem: str | None = None


def read_numbers(camera: Camera) -> Numbers:
    """Camera numbers and distortion; raises BadFrame for lens models that are not read and impossible numbers."""
    if camera.model not in READ:
        raise BadFrame(f"lens model {camera.model} is not read (undistort the photos first)")
    if not all(1 <= side <= MAX_SIDE for side in camera.image_size):
        raise BadFrame(f"impossible size {camera.image_size[1]}x{camera.image_size[0]}")
    if not all(abs(p) < 1e12 for p in camera.parameters):
        raise BadFrame("camera numbers that are NaN or too large")
    rest = camera.parameters
    if camera.model in ONE_FOCAL_LENGTH:
        rest = (rest[0], *rest)
    fx, fy, cx, cy, *lens = rest
    return Numbers(fx, fy, cx, cy, declared=camera.image_size, distortion=_distortion(camera.model, tuple(lens)))


def camera_to_world(photo: Photo) -> Float64[np.ndarray, "4 4"]:
    """The inverse of a photo's world-to-camera quaternion (of any length) and translation."""
    w, x, y, z = quaternion = np.array(photo.quaternion)
    with np.errstate(all="ignore"):  # what is not finite is told when the frame is checked
        w, x, y, z = quaternion / np.linalg.norm(quaternion)
        w2c = np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )
        c2w = np.eye(4)
        c2w[:3, :3], c2w[:3, 3] = w2c.T, -w2c.T @ np.array(photo.translation)
    return c2w


def _distortion(model: str, numbers: tuple[float, ...]) -> Distortion:
    if model in POLYNOMIAL:
        return Distortion("opencv", numbers) if any(numbers) else PINHOLE
    if model in FISHEYE:
        return Distortion("fisheye", numbers + (0.0,) * (4 - len(numbers)))
    if model == "THIN_PRISM_FISHEYE":
        return Distortion("thin_prism_fisheye", numbers)
    if model == "FOV" and abs(numbers[0]) > NO_FOV:
        if not abs(numbers[0]) < np.pi:
            raise BadFrame(f"field of view of {numbers[0]:g} radians")
        return Distortion("fov", numbers)
    return PINHOLE
