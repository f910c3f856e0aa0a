"""Scene files of LVSM: metadata/NAME.json with frames of image_path, fxfycxcy in pixels and w2c (OpenCV axes)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import UserError
from data.files import PhotoFinder
from data.frames import BadFrame, Capture, Numbers
from data.parsers.listing import list_frames, shorten_names
from data.parsers.values import camera_to_world, image_size, matrix, number, read_object

NAME = "LVSM"
LOOKS_LIKE = "metadata/*.json, each with a scene's frames"


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


def parse(path: Path) -> Capture:
    """List the frames of one scene file; photo paths start at the folder above `metadata`."""
    file = _only_scene(path) if path.is_dir() else path
    content = read_object(file)
    root = file.parent.parent if file.parent.name == "metadata" else file.parent
    return Capture(shorten_names(list_frames(content["frames"], PhotoFinder(root), "image_path", _read)))


def _only_scene(folder: Path) -> Path:
    files = sorted((folder / "metadata").glob("*.json"))
    if len(files) > 1:
        some = ", ".join(f.name for f in files[:5]) + (", ..." if len(files) > 5 else "")
        raise UserError(f"{folder} holds {len(files)} scenes ({some}). Give one of the files in its metadata folder.")
    return files[0]


def _read(frame: Mapping[str, Any]) -> tuple[np.ndarray, Numbers]:
    values = matrix(frame, "fxfycxcy").ravel().tolist()
    if len(values) != 4:
        raise BadFrame("fxfycxcy is not four numbers")
    fx, fy, cx, cy = (number([{"fxfycxcy": value}], "fxfycxcy") for value in values)
    return camera_to_world(matrix(frame, "w2c")), Numbers(fx, fy, cx, cy, declared=image_size(frame))
