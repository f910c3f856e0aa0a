"""One photo of a capture: first as the capture lists it, then checked against the file on disk."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import isfinite, tan
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

from data.distortion import PINHOLE, Distortion, zoom_to_fill
from data.images import PhotoHeader

MAX_COORDINATE = 1e12
TURNED = (5, 6, 7, 8)


class BadFrame(Exception):
    """Why one frame cannot be used, in a few words; the others go on."""


@dataclass(frozen=True)
class Numbers:
    """Camera numbers as a capture states them, in pixels of the `declared` size (h, w); None where it is silent."""

    fx: float | None = None
    fy: float | None = None
    cx: float | None = None
    cy: float | None = None
    angle_x: float | None = None  # full horizontal field of view in radians
    angle_y: float | None = None
    declared: tuple[int, int] | None = None
    # The size was stated for the whole capture, but this photo has numbers of its own: the size counts only if the
    # photo is a copy of that size divided by a whole number.
    declared_for_all: bool = False
    distortion: Distortion = PINHOLE
    normalized: bool = False  # fx and cx are parts of the photo's width, fy and cy of its height, whatever these are

    def for_size(self, image_size: tuple[int, int]) -> Numbers:
        """The same in pixels of a photo of `image_size` (h, w), if they are parts of it."""
        if not self.normalized:
            return self
        h, w = image_size
        sides = {"fx": w, "fy": h, "cx": w, "cy": h}
        pixels = {name: None if (v := getattr(self, name)) is None else v * side for name, side in sides.items()}
        return replace(self, **pixels, normalized=False)


@dataclass(frozen=True)
class Listing:
    """A photo as the capture lists it. A parser makes these; nobody has looked at the photo yet."""

    name: str
    file: Path | None  # None: the listed file was not found
    c2w: np.ndarray | None = None  # 4x4 or 3x4, OpenCV axes, the world of the capture
    numbers: Numbers = Numbers()
    split: str | None = None
    downscale: int = 1  # the N of images_N, where the listed folder is absent
    problem: str | None = None  # why the listing itself cannot be used


@dataclass(frozen=True)
class Capture:
    """What a parser returns: the listings, and notes on what it chose or ignored.

    `unpacked` is the folder of its own into which the parser has written the photos, if it did.
    """

    listings: list[Listing]
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unpacked: Path | None = None


@dataclass(frozen=True, eq=False)
class Frame:
    """A photo that exists and its camera: OpenCV axes, pixels of the raster of size (h, w) that is decoded."""

    name: str
    path: Path
    c2w: Float64[np.ndarray, "4 4"]
    intrinsics: tuple[float, float, float, float]
    image_size: tuple[int, int]
    distortion: Distortion = PINHOLE
    orientation: int = 1  # EXIF turn to apply when decoding; 1 is none

    @property
    def zoom(self) -> float:
        """How much the undistorted photo is enlarged so that it has no empty pixels."""
        return zoom_to_fill(self.distortion, self.intrinsics, self.image_size)


class Checked(NamedTuple):
    """A sound frame, what looks wrong with it, and what was chosen on the way, each in a few words."""

    frame: Frame
    warnings: list[str]
    notes: list[str]


def make_frame(listing: Listing, header: PhotoHeader) -> Checked:
    """Check a listing against its photo; raises BadFrame."""
    if listing.file is None or listing.c2w is None:
        raise BadFrame(listing.problem or "missing")
    c2w = check_c2w(listing.c2w)
    declared = _declared(listing, header)
    orientation, notes = choose_orientation(header, declared)
    h, w = header.turned_size if orientation in TURNED else header.size
    intrinsics = resolve_intrinsics(listing.numbers.for_size((h, w)), declared or (h, w), (h, w))
    warnings = []
    if declared and not _same_shape(declared, (h, w), tolerance=0.05):
        warnings.append(f"declared as {declared[1]}x{declared[0]} but the photo is {w}x{h} (width x height)")
    elif declared and declared != (h, w) and listing.downscale == 1:
        sizes = f"{declared[1]}x{declared[0]} scaled to the {w}x{h} of the photo (width x height)"
        notes = [*notes, f"camera numbers for {sizes}"]
    frame = Frame(listing.name, listing.file, c2w, intrinsics, (h, w), listing.numbers.distortion, orientation)
    try:
        _ = frame.zoom
    except ValueError as error:
        raise BadFrame(str(error)) from error
    return Checked(frame, warnings, notes)


def check_c2w(matrix: np.ndarray) -> Float64[np.ndarray, "4 4"]:
    """The nearest exact pose (orthonormal rotation, bottom row 0 0 0 1) to a stated one; raises BadFrame."""
    if matrix.shape not in ((3, 4), (4, 4)):
        raise BadFrame(f"matrix of shape {matrix.shape}, not 4x4")
    if not np.isfinite(matrix).all():
        raise BadFrame(f"{'NaN' if np.isnan(matrix).any() else 'infinity'} in the matrix")
    if np.abs(matrix).max() > MAX_COORDINATE:
        raise BadFrame(f"numbers beyond {MAX_COORDINATE:g} in the matrix")
    if matrix.shape == (4, 4) and np.abs(matrix[3] - [0, 0, 0, 1]).max() > 1e-4:
        raise BadFrame("the matrix's bottom row is not 0 0 0 1")
    rotation = matrix[:3, :3].astype(np.float64)
    lengths = np.linalg.norm(rotation, axis=0)
    if lengths.min() < 1e-9:
        raise BadFrame("zero rotation in the matrix")
    u, stretch, vt = np.linalg.svd(rotation / lengths)
    if np.linalg.det(u @ vt) < 0:
        raise BadFrame("mirrored matrix")
    if stretch.max() > 1.05 or stretch.min() < 0.95 or lengths.max() > 1.05 * lengths.min():
        raise BadFrame("sheared matrix, not a rotation")
    c2w = np.eye(4)
    c2w[:3, :3], c2w[:3, 3] = u @ vt, matrix[:3, 3]
    c2w.setflags(write=False)
    return c2w


def choose_orientation(header: PhotoHeader, declared: tuple[int, int] | None) -> tuple[int, list[str]]:
    """The EXIF turn that the camera numbers belong to: the declared size decides, the stored raster wins a tie."""
    if header.orientation == 1:
        return 1, []
    turned = header.turned_size if header.orientation in TURNED else header.size
    fits_stored = declared is None or _same_shape(declared, header.size)
    fits_turned = declared is None or _same_shape(declared, turned)
    if fits_turned and not fits_stored:
        return header.orientation, []
    return 1, ["EXIF turn ignored, the stored pixels are used"] if fits_turned else []


def resolve_intrinsics(
    numbers: Numbers, declared: tuple[int, int], actual: tuple[int, int]
) -> tuple[float, float, float, float]:
    """fx, fy, cx, cy in pixels of the actual size (h, w), filling in what is not stated; raises BadFrame.

    A field of view `a` over a width `w` means the focal length 0.5 w / tan(a / 2).
    """
    h, w = declared
    fx = numbers.fx if numbers.fx is not None else _focal(numbers.angle_x, w)
    fy = numbers.fy if numbers.fy is not None else _focal(numbers.angle_y, h)
    fx, fy = (fx if fx is not None else fy), (fy if fy is not None else fx)
    if fx is None or fy is None:
        raise BadFrame("no focal length and no field of view")
    cx = numbers.cx if numbers.cx is not None else w / 2
    cy = numbers.cy if numbers.cy is not None else h / 2
    if not all(isfinite(v) for v in (fx, fy, cx, cy)) or min(fx / w, fy / h) <= 0 or max(fx / w, fy / h) > 1e4:
        raise BadFrame(f"impossible camera numbers fx={fx:g} fy={fy:g} cx={cx:g} cy={cy:g}")
    if min(fx / w, fy / h) < 0.02:
        raise BadFrame(f"focal length of {fx:g} pixels for {w} pixels of width (divided by the width?)")
    if abs(cx - w / 2) > 10 * w or abs(cy - h / 2) > 10 * h:
        raise BadFrame(f"principal point {cx:g}, {cy:g} far outside the photo")
    scale_x, scale_y = actual[1] / w, actual[0] / h
    return fx * scale_x, fy * scale_y, cx * scale_x, cy * scale_y


def _declared(listing: Listing, header: PhotoHeader) -> tuple[int, int] | None:
    """The size that the numbers belong to, where it is stated or known from the folder."""
    declared = listing.numbers.declared
    if declared and listing.numbers.declared_for_all:
        shapes = [header.size] + ([header.turned_size] if header.orientation in TURNED else [])
        declared = declared if any(_is_multiple(declared, shape) for shape in shapes) else None
    if declared is None and listing.downscale > 1:
        return header.size[0] * listing.downscale, header.size[1] * listing.downscale
    return declared


def _is_multiple(large: tuple[int, int], small: tuple[int, int]) -> bool:
    """Whether `small` is `large` divided by a whole number, give or take a pixel of rounding."""
    factor = max(1, round(large[0] / small[0]))
    return all(abs(a - factor * b) <= factor - 1 for a, b in zip(large, small, strict=True))


def _same_shape(a: tuple[int, int], b: tuple[int, int], tolerance: float = 0.02) -> bool:
    """Whether two sizes have the same aspect, give or take a pixel of rounding in the smaller one."""
    slack = tolerance + 1 / min(*a, *b)
    return bool(abs(np.log((a[0] / a[1]) / (b[0] / b[1]))) <= slack)


def _focal(angle: float | None, pixels: int) -> float | None:
    if angle is None:
        return None
    if not 0 < angle < np.pi:
        raise BadFrame(f"field of view of {angle:g} radians")
    return 0.5 * pixels / tan(angle / 2)
