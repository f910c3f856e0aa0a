"""Sequences of CO3D (v1, v2): CATEGORY/SEQUENCE/images with the cameras of a category in frame_annotations.jgz.

The cameras are PyTorch3D's: row vectors (X R + T), axes x left, y up, z forward, and numbers in normalised device
coordinates, where +x is left and the scale is half the shorter side ("ndc_isotropic") or half of each side.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import UserError
from data.files import PhotoFinder
from data.frames import BadFrame, Capture, Listing, Numbers
from data.parsers.values import camera_to_world, image_size, matrix, number, text

NAME = "CO3D"

ANNOTATIONS = "frame_annotations.jgz"
BETWEEN_ENTRIES = re.compile(r"[\s,\[\]]*")
MAX_ENTRY = 2**20  # characters
MAX_TEXT = 2**32


def matches(path: Path) -> bool:
    """Whether this is the folder of a category or of a sequence."""
    return path.is_dir() and ((path / ANNOTATIONS).is_file() or _is_sequence(path))


def scenes(path: Path) -> list[Path]:
    """The folders of all sequences of a category, or the one given."""
    return sorted(f for f in path.iterdir() if (f / "images").is_dir()) if (path / ANNOTATIONS).is_file() else [path]


def parse(path: Path) -> Capture:
    """List the photos of one sequence."""
    path = path.absolute()
    if not _is_sequence(path):
        raise UserError(f"{path} has no folder images. Give the folder of a sequence.")
    finder = PhotoFinder(path.parent)  # finds CATEGORY/SEQUENCE/images/a.jpg whatever the category's folder is called
    entries = _entries(path.parent / ANNOTATIONS)
    return Capture([_list_frame(entry, finder) for entry in entries if entry.get("sequence_name") == path.name])


def _list_frame(entry: Mapping[str, Any], finder: PhotoFinder) -> Listing:
    name = f"frame {entry.get('frame_number')}"
    try:
        photo, view = _object(entry, "image"), _object(entry, "viewpoint")
        written = text(photo, "path")
        name = written.rpartition("/")[2]
        c2w, numbers = _read_camera(photo, view)
    except BadFrame as problem:
        return Listing(name, None, problem=str(problem))
    found = finder.find(written)
    return Listing(name, found.path if found else None, c2w, numbers)


def _read_camera(photo: Mapping[str, Any], view: Mapping[str, Any]) -> tuple[np.ndarray, Numbers]:
    rotation, translation = matrix(view, "R"), matrix(view, "T")
    focal, center, size = matrix(view, "focal_length"), matrix(view, "principal_point"), matrix(photo, "size")
    if (rotation.shape, translation.shape, focal.shape, center.shape, size.shape) != ((3, 3), (3,), (2,), (2,), (2,)):
        raise BadFrame("camera numbers of other shapes than CO3D's")
    declared = image_size({"h": float(size[0]), "w": float(size[1])})
    kind = view.get("intrinsics_format", "ndc_norm_image_bounds")
    if kind not in ("ndc_isotropic", "ndc_norm_image_bounds") or declared is None:
        raise BadFrame(f"intrinsics_format {kind} is not read")
    half = np.array(declared[::-1]) / 2
    scale = np.full(2, half.min()) if kind == "ndc_isotropic" else half
    pixels = {"focal_length": focal * scale, "principal_point": half - center * scale}
    (fx, fy), (cx, cy) = ([number([{key: float(v)}], key) for v in values] for key, values in pixels.items())
    w2c = np.diag([-1.0, -1.0, 1.0]) @ np.column_stack([rotation.T, translation])
    return camera_to_world(w2c), Numbers(fx, fy, cx, cy, declared=declared)


def _object(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = entry.get(key)
    if not isinstance(value, Mapping):
        raise BadFrame(f"no {key}")
    return value


def _entries(file: Path) -> Iterator[Mapping[str, Any]]:
    """The objects of a compressed JSON list one after the other: whole, it may not fit into memory."""
    decoder, pending, total = json.JSONDecoder(), "", 0
    try:
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            while part := stream.read(MAX_ENTRY):
                pending, total = pending + part, total + len(part)
                at = _skip_separators(pending, 0)
                while at < len(pending):
                    try:
                        entry, at = decoder.raw_decode(pending, at)
                    except ValueError as error:
                        if len(pending) - at > MAX_ENTRY or total > MAX_TEXT:
                            raise UserError(f"{file} is no list of frames. Download it again.") from error
                        break
                    at = _skip_separators(pending, at)
                    if isinstance(entry, Mapping):
                        yield entry
                pending = pending[at:]
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be unpacked ({error}). Download it again.") from error
    if pending:
        raise UserError(f"{file} is cut off or damaged. Download it again.")


def _skip_separators(text: str, at: int) -> int:
    between = BETWEEN_ENTRIES.match(text, at)
    return between.end() if between else at


def _is_sequence(path: Path) -> bool:
    return (path / "images").is_dir() and (path.parent / ANNOTATIONS).is_file()
