"""Scene files of LVSM: metadata/NAME.json with frames of image_path, fxfycxcy in pixels and w2c (OpenCV axes)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.files import PhotoFinder
from data.frames import BadFrame, Capture, Numbers
from data.parsers.listing import list_frames, shorten_names
from data.parsers.values import camera_to_world, image_size, matrix, number, read_object

NAME = "LVSM"


def matches(path: Path) -> bool:
    """Whether this is a folder with metadata/*.json, or one such file."""
    if path.is_dir():
        return any((path / "metadata").glob("*.json"))
    if path.suffix != ".json":
        return False
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
        return "fxfycxcy" in content["frames"][0]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return path.parent.name == "metadata"


def scenes(path: Path) -> list[Path]:
    """The files of all scenes of a folder, or the file itself."""
    return sorted((path / "metadata").glob("*.json")) if path.is_dir() else [path]


def parse(path: Path) -> Capture:
    """List the frames of one scene file; photo paths start at the folder above `metadata`."""
    content = read_object(path)
    root = path.parent.parent if path.parent.name == "metadata" else path.parent
    return Capture(shorten_names(list_frames(content["frames"], PhotoFinder(root), "image_path", _read)))


def _read(frame: Mapping[str, Any]) -> tuple[np.ndarray, Numbers]:
    values = matrix(frame, "fxfycxcy").ravel().tolist()
    if len(values) != 4:
        raise BadFrame("fxfycxcy is not four numbers")
    fx, fy, cx, cy = (number([{"fxfycxcy": value}], "fxfycxcy") for value in values)
    return camera_to_world(matrix(frame, "w2c")), Numbers(fx, fy, cx, cy, declared=image_size(frame))
