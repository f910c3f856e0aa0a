"""What people upload: anything until it is checked."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from apps.viewer.workspace import Folder, Limits
from data import PHOTO_SUFFIXES, VIDEO_SUFFIXES, Scene, UserError, is_plain_photos, unpack_into

REFUSED_SUFFIXES = (".torch", ".pt", ".pth", ".pkl", ".ckpt", ".tar")
"""Files of Python objects, and archives in the archive; no capture that people share as a .zip of photos needs them."""


def kind_of(paths: Sequence[Path], limits: Limits) -> str:
    """What an upload is: "zip", "state", "video" or "photos"; anything else is refused."""
    if not paths:
        raise UserError("Nothing was uploaded: choose photos, a video, a .zip of a capture or a scene state.")
    if len(paths) > limits.files:
        raise UserError(f"{len(paths)} files are too many: upload at most {limits.files} at a time.")
    size = sum(path.stat().st_size for path in paths)
    if size > limits.upload_bytes:
        raise UserError(
            f"The upload has {size / 2**20:.0f} MiB, but at most {limits.upload_bytes / 2**20:.0f} MiB are taken."
        )
    suffixes = {path.suffix.lower() for path in paths}
    alone = len(paths) == 1
    if suffixes == {".zip"} and alone:
        return "zip"
    if suffixes == {".safetensors"} and alone:
        return "state"
    if suffixes <= set(VIDEO_SUFFIXES) and alone:
        return "video"
    if suffixes <= set(PHOTO_SUFFIXES):
        return "photos"
    raise UserError(
        "Upload one of these: photos, one video, one .zip of photos with or without their cameras, or one .safetensors "
        "scene state."
    )


def unpack(path: Path, folder: Folder, limits: Limits) -> Path:
    """Unpack a .zip into a folder of its name, which failures name; returns what is the capture in there."""
    place = folder.path / path.name
    place.mkdir()
    capture = unpack_into(path, place, limits.files, limits.unpacked_bytes).capture
    for file in place.rglob("*"):
        if file.is_symlink() or file.name.lower().endswith(REFUSED_SUFFIXES):
            raise UserError(
                f"The archive holds {file.name}, which is not taken from a browser. Upload pictures, with "
                "their cameras as JSON or COLMAP files."
            )
    return capture


def are_plain_photos(place: Path, limits: Limits) -> bool:
    """Whether an unpacked folder holds photos without cameras; these are counted, and checked by their headers."""
    if not is_plain_photos(place):
        return False
    photos = [path for path in place.rglob("*") if path.suffix.lower() in PHOTO_SUFFIXES]
    _check_count("The archive", len(photos), limits)
    for path in photos:
        _check_header(path, limits)
    return True


def check_photos(scene: Scene, limits: Limits) -> None:
    """Refuse a capture whose photos would take too much memory."""
    _check_count(scene.name, len(scene), limits)
    for frame in scene.frames:
        _check_pixels(frame.name, frame.image_size, limits)


def collect_photos(paths: Sequence[Path], folder: Folder, limits: Limits) -> Path:
    """Put photos, checked by their headers, into one folder under their own names."""
    _check_count("The upload", len(paths), limits)
    place = folder.path / "photos"
    place.mkdir()
    for number, path in enumerate(paths):
        _check_header(path, limits)
        target = place / path.name
        while target.exists():
            target = place / f"{target.stem}_{number}{path.suffix}"
        _link(path, target)
    return place


def digest(paths: Sequence[Path]) -> str:
    """Identity of files by their content."""
    found = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:24]


def _check_count(name: str, photos: int, limits: Limits) -> None:
    if photos > limits.photos:
        raise UserError(f"{name} has {photos} photos; the viewer takes at most {limits.photos}.")


def _check_header(path: Path, limits: Limits) -> None:
    try:
        with Image.open(path) as picture:
            size = (picture.height, picture.width)
    except Exception:  # Pillow raises many types; reading the photos will say what is wrong with this one
        return
    _check_pixels(path.name, size, limits)


def _check_pixels(name: str, size: tuple[int, int], limits: Limits) -> None:
    h, w = size
    if h * w > limits.photo_pixels:
        raise UserError(
            f"{name} has {h * w / 1e6:.0f} million pixels; the viewer takes photos of at most "
            f"{limits.photo_pixels / 1e6:.0f} million. Make it smaller."
        )


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
