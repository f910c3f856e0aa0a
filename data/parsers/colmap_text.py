"""cameras.txt and images.txt of COLMAP, in which each photo has two lines and the second one may be blank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from data.errors import UserError
from data.parsers.colmap_models import LENS_MODELS, Camera, Photo

COUNTS = {lens.name: lens.count for lens in LENS_MODELS.values()}


def read_cameras(path: Path) -> dict[int, Camera]:
    """All cameras by their number; raises UserError at a line that is no camera."""
    cameras = {}
    for number, line in _lines(path):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            identity, model, w, h, *parameters = words
            camera = Camera(model, (int(h), int(w)), tuple(float(p) for p in parameters))
            if COUNTS.get(model, len(parameters)) != len(parameters):
                raise ValueError
            cameras[int(identity)] = camera
        except ValueError as error:
            raise UserError(
                f"{path}, line {number}, is no camera: it should hold a number, a lens model, width, height and the "
                "numbers of that model. Export the model from COLMAP again."
            ) from error
    return cameras


def read_photos(path: Path) -> list[Photo]:
    """All photos; a line that is no photo becomes an entry with a problem. Lines of points are skipped unread."""
    photos: list[Photo] = []
    expecting_points = False
    for number, line in _lines(path):
        if line.lstrip().startswith("#"):
            continue
        # A file without lines of points is taken too, hence the look at what stands there.
        if expecting_points and _may_be_points(line):
            expecting_points = False
        elif line.strip():
            photos.append(_read_photo(line, number))
            expecting_points = True
    return photos


def _read_photo(line: str, number: int) -> Photo:
    words = line.split(None, 9)
    try:
        pose, camera = tuple(float(word) for word in words[1:8]), int(words[8])
        # The name is the rest of the line, blanks included.
        return Photo(words[9].rstrip(), camera, pose[:4], pose[4:])
    except (ValueError, IndexError):
        return Photo(f"line {number}", problem=f"not a photo: {line[:40]!r}")


def _may_be_points(line: str) -> bool:
    """Whether a line is blank or starts like x, y and a whole number, and so on, where a photo would have a name."""
    words = line.split(None, 10)[:10]
    try:
        _ = [float(word) for word in words], [int(word) for word in words[2::3]]
    except ValueError:
        return False
    return True


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, from 1; bytes that are not UTF-8 are kept as the file system would name them."""
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
            for number, line in enumerate(file, 1):
                yield number, line.rstrip("\r\n")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
