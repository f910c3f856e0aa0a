"""Cameras as they come from the browser, and frames as they go there."""

from __future__ import annotations

import io
import json
import math
import struct
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from apps.viewer.sizes import Size
from data import Cameras, UserError
from nvs.interpolation import check_cameras, orthonormal

HEADER = struct.Struct("<BBHIHHf")
"""Version, flags, nothing, sequence number, width, height, milliseconds of the render."""
VERSION = 1
FULL, LOSSLESS = 1, 2
LOSSLESS_PIXELS = 128 * 128
"""Pictures at rest of up to so many pixels are sent without loss: that is some 10 KB."""
FARTHEST = 1e4
"""Largest coordinate of a camera, in scene units."""


class Shot(NamedTuple):
    """A camera that someone wants to look through, and how."""

    c2w: torch.Tensor
    """Camera-to-world (4, 4) in the scene's frame, float64."""
    lens: tuple[float, float, float, float] | None
    """fx / w, fy / h, cx / w, cy / h; None for square pixels and a centred lens with `fov`."""
    fov: float
    """Horizontal view angle in degrees."""
    seq: int = 0
    size: Size | None = None
    """Full size of the picture; None for that of the scene."""
    moving: bool = False
    """Whether a quick preview is wanted, because the next camera is on its way."""
    photo: int | None = None
    """The photo at whose camera this one stands."""
    lossless: bool = False

    def cameras(self, size: Size) -> Cameras:
        """This camera at a size (h, w) in pixels; float64."""
        h, w = size
        if self.lens is None:
            focal = w / 2 / math.tan(math.radians(self.fov) / 2)
            numbers = [focal, focal, w / 2, h / 2]
        else:
            numbers = [part * side for part, side in zip(self.lens, (w, h, w, h), strict=True)]
        return Cameras(self.c2w[None], torch.tensor([numbers], dtype=torch.float64), size)


class Frame(NamedTuple):
    """A compressed picture with what is told about it."""

    seq: int
    full: bool
    size: Size
    milliseconds: float
    data: bytes
    lossless: bool = False
    remarks: dict[str, Any] | None = None

    def packed(self) -> bytes:
        """The frame as one binary message."""
        flags = FULL * self.full + LOSSLESS * self.lossless
        (h, w) = self.size
        return HEADER.pack(VERSION, flags, 0, self.seq, w, h, self.milliseconds) + self.data


def encode_frame(shot: Shot, pixels: np.ndarray, seconds: float, remarks: dict[str, Any] | None) -> Frame:
    """Compress a picture: hastily while the camera moves, finely when it rests, and without loss if it is small."""
    h, w = pixels.shape[:2]
    file, picture = io.BytesIO(), Image.fromarray(pixels)
    lossless = shot.lossless or (not shot.moving and h * w <= LOSSLESS_PIXELS)
    if lossless:
        picture.save(file, "PNG", compress_level=1)
    elif shot.moving:
        picture.save(file, "JPEG", quality=80)
    else:
        picture.save(file, "JPEG", quality=95, subsampling=0)
    return Frame(shot.seq, not shot.moving, (h, w), 1000 * seconds, file.getvalue(), lossless, remarks)


def read_json(text: str | bytes) -> dict[str, Any]:
    """A JSON object from someone who may send anything."""
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError("The message is not JSON.") from error
    if not isinstance(message, dict):
        raise UserError("The message is no JSON object.")
    return message


def read_shot(message: dict[str, Any], sizes: list[Size]) -> Shot:
    """Check a camera that comes from a browser or a script; anything that is wrong raises UserError."""
    lens, fov = message.get("lens"), message.get("fov")
    if lens is None and fov is None:
        raise UserError("A camera needs a field of view (fov, in degrees) or a lens.")
    numbers = None if lens is None else _numbers(lens, 4, "lens")
    if numbers is not None and not (min(numbers[:2]) > 1e-3 and max(map(abs, numbers)) < 1e3):
        raise UserError("The lens of a camera is out of range.")
    angle = 2 * math.degrees(math.atan(0.5 / numbers[0])) if numbers else _number(fov, "fov")
    if not 1 <= angle <= 170:
        raise UserError(f"A field of view of {angle:g} degrees is not possible: choose one from 1 to 170.")
    return Shot(
        c2w=read_pose(message.get("c2w")),
        lens=(numbers[0], numbers[1], numbers[2], numbers[3]) if numbers else None,
        fov=angle,
        seq=_whole(message.get("seq", 0), "seq", 2**32 - 1),
        size=read_size(message.get("size"), sizes),
        moving=message.get("moving") is True,
        photo=None if message.get("photo") is None else _whole(message["photo"], "photo", 10**6),
        lossless=message.get("format") == "png",
    )


def read_pose(value: Any) -> torch.Tensor:
    """A camera-to-world matrix (float64) from 16 numbers row by row, or from four rows."""
    flat = [x for row in value for x in row] if isinstance(value, list) and len(value) == 4 else value
    c2w = torch.tensor(_numbers(flat, 16, "c2w"), dtype=torch.float64).reshape(4, 4)
    if c2w[:3, 3].abs().max() > FARTHEST or not torch.equal(c2w[3], c2w.new_tensor([0, 0, 0, 1])):
        raise UserError("The pose of a camera is out of range.")
    check_cameras(Cameras(c2w[None], torch.ones(1, 4), (1, 1)))
    return orthonormal(c2w[None])[0]


def read_size(value: Any, sizes: list[Size]) -> Size | None:
    """A size (h, w) that is one of `sizes`."""
    if value is None:
        return None
    found = [size for size in sizes if isinstance(value, list | tuple) and list(size) == list(value)]
    if not found:
        raise UserError(f"Pictures of this size cannot be rendered here: choose one of {sizes}.")
    return found[0]


def _whole(value: Any, name: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise UserError(f"{name} must be a whole number from 0 to {most}.")
    return value


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{name} must be a number.")
    return float(value)


def _numbers(value: Any, count: int, name: str) -> list[float]:
    if not isinstance(value, list | tuple) or len(value) != count:
        raise UserError(f"{name} must be {count} numbers.")
    return [_number(x, name) for x in value]
