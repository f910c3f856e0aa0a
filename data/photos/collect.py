"""Finds the photos that a person means, checks them, and tells which were taken with the same camera and lens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import hypot, isfinite
from pathlib import Path, PurePosixPath

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from data.archive import unpack
from data.errors import UserError
from data.files import PHOTO_SUFFIXES, natural_key
from data.images import PhotoError, decode, read_header, resize

MIN_PHOTOS = 3
DIAGONAL_OF_35MM = hypot(36, 24)
EXIF_MAKE, EXIF_MODEL, EXIF_FOCAL, EXIF_FOCAL_35MM = 0x010F, 0x0110, 0x920A, 0xA405
EXIF_DETAILS = 0x8769

Step = Callable[[str, int, int], object]
"""Told (what is being done, steps done, steps in all)."""


@dataclass(frozen=True)
class Photo:
    """A photo that can be read, as its pixels are stored: an EXIF turn is not applied."""

    path: Path
    name: str
    """What it is called in the scene, with "/" between folders and without suffix; each name occurs once."""
    size: tuple[int, int]
    """Stored height and width in pixels."""
    turned: bool = False
    """Whether EXIF asks viewers to turn it."""
    lens: tuple[str, ...] = ()
    """Make, model and focal length in mm as EXIF tells them; photos that agree here share one camera."""
    focal: float | None = None
    """Focal length divided by the longer side, as far as EXIF tells it."""

    def scaled(self, max_size: int) -> tuple[int, int]:
        """Height and width when the longer side is at most `max_size` pixels."""
        scale = min(1.0, max_size / max(self.size))
        return max(1, round(self.size[0] * scale)), max(1, round(self.size[1] * scale))


def list_photos(inputs: Sequence[Path]) -> list[tuple[str, Path]]:
    """(name, path) of all pictures among files and folders, in natural order; folders without any are searched below.

    Files that a person names are taken whatever their suffix, those of a folder by their suffix. A .zip stands for the
    folder in it.
    """
    found: list[tuple[str, Path]] = []
    for source in inputs:
        if not source.exists():
            raise UserError(f"{source} does not exist. Give photos, a folder or .zip of them, or a video.")
        if source.is_dir():
            found += _in_folder(source)
        elif source.suffix.lower() == ".zip":
            found += _in_folder(unpack(source).capture)
        else:
            found.append((source.name, source))
    once = list({path.resolve(): (name, path) for name, path in found}.values())
    if not once:
        places = ", ".join(map(str, inputs))
        raise UserError(
            f"{places} holds no photos. Give a folder or .zip of pictures such as .jpg or .png, or a video file."
        )
    return once


def read_photos(listed: Sequence[tuple[str, Path]], on_step: Step) -> tuple[list[Photo], list[tuple[str, str]]]:
    """The readable photos, and (name, why) of the others; too few readable ones are an error that names the others."""
    photos: list[Photo] = []
    unreadable: list[tuple[str, str]] = []
    for done, (name, path) in enumerate(listed):
        on_step("checking photos", done, len(listed))
        try:
            photos.append(read_photo(name, path))
        except PhotoError as problem:
            unreadable.append((name, problem.reason))
    on_step("checking photos", len(listed), len(listed))
    check_enough(photos, unreadable)
    return _name_once(photos), unreadable


def check_enough(photos: Sequence[Photo], unreadable: Sequence[tuple[str, str]]) -> None:
    """Refuse to work with too few photos, naming those that cannot be read."""
    if len(photos) < MIN_PHOTOS:
        named = "".join(f"; {name}: {why}" for name, why in unreadable[:10])
        raise UserError(
            f"There are {len(photos)} readable photos, but at least {MIN_PHOTOS} are needed{named}. "
            "Take 20 or more photos while walking around the scene, so that neighbours show mostly the same things."
        )


def read_photo(name: str, path: Path) -> Photo:
    """Look at the header of one photo; raises PhotoError."""
    header = read_header(path)
    make, model, focal, focal_35mm = _exif(path)
    relative = None
    if focal_35mm:
        relative = focal_35mm / DIAGONAL_OF_35MM * hypot(*header.size) / max(header.size)
    lens = (make, model, f"{focal:.1f} mm") if focal else (make, model)
    return Photo(path, name, header.size, header.orientation != 1, lens, relative)


def load_scaled(path: Path, size: tuple[int, int]) -> Float[Tensor, "c h w"]:
    """Pixels in 0..1 (RGB, or RGB and alpha) at a size (h, w) no larger than the photo's own."""
    drafted = _draft(path, size)
    pixels = decode(path) if drafted is None else drafted
    if len(pixels) == 3 or tuple(pixels.shape[-2:]) == size:
        return resize(pixels, size)
    # Weighted by alpha, so that the hidden colour of transparent pixels does not bleed into edges.
    weighted = torch.cat([pixels[:3] * pixels[3:], pixels[3:]])
    small = F.interpolate(weighted[None], size, mode="bicubic", antialias=True, align_corners=False)[0]
    return torch.cat([small[:3] / small[3:].clamp_min(1 / 255), small[3:]]).clamp(0, 1)


def group_cameras(photos: Sequence[Photo]) -> list[list[int]]:
    """Indices of photos that one camera took: the same size, maker, model and focal length."""
    groups: dict[tuple, list[int]] = {}
    for index, photo in enumerate(photos):
        groups.setdefault((photo.size, photo.lens), []).append(index)
    return list(groups.values())


def _draft(path: Path, size: tuple[int, int]) -> Float[Tensor, "3 h w"] | None:
    """A JPEG decoded at a half, a quarter or an eighth of its size: a large one takes a fraction of time and memory."""
    try:
        with Image.open(path) as photo:
            if photo.format not in ("JPEG", "MPO") or photo.draft("RGB", (size[1], size[0])) is None:
                return None
            pixels = np.asarray(photo.convert("RGB")).astype(np.float32) / 255
    except Exception:  # Pillow raises many types on damaged files; `decode` says which and why
        return None
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _in_folder(folder: Path) -> list[tuple[str, Path]]:
    """Pictures directly in a folder; if it has none, those below, named with their sub-folder."""

    def pictures(paths: Iterable[Path]) -> list[tuple[str, Path]]:
        named = [(path.relative_to(folder).as_posix(), path) for path in paths if _is_picture(path)]
        return sorted(named, key=lambda entry: natural_key(entry[0]))

    return pictures(folder.iterdir()) or pictures(folder.rglob("*"))


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PHOTO_SUFFIXES and not path.name.startswith(".") and path.is_file()


def _exif(path: Path) -> tuple[str, str, float, float]:
    """Make, model, focal length in mm, and that of a 35 mm camera with the same view; empty or 0 where untold."""
    try:
        with Image.open(path) as photo:
            exif = photo.getexif()
            details = exif.get_ifd(EXIF_DETAILS)
    except Exception:  # damaged EXIF raises many types, and the photo is as good without
        return "", "", 0.0, 0.0

    def number(tag: int) -> float:
        try:
            value = float(details.get(tag) or 0)
        except (TypeError, ValueError, ZeroDivisionError):
            return 0.0
        return value if isfinite(value) and value > 0 else 0.0

    make, model = (str(exif.get(tag) or "").strip("\0 ") for tag in (EXIF_MAKE, EXIF_MODEL))
    return make, model, number(EXIF_FOCAL), number(EXIF_FOCAL_35MM)


def _name_once(photos: list[Photo]) -> list[Photo]:
    """The photos with names that stay different when their suffix is replaced."""
    taken: set[str] = set()
    named = []
    for photo in photos:
        path = PurePosixPath(photo.name)
        stem = name = path.with_suffix("").as_posix()
        number = 2
        while name.lower() in taken:
            name, number = f"{stem}_{number}", number + 1
        taken.add(name.lower())
        named.append(replace(photo, name=name))
    return named
