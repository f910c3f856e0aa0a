"""opencv_cameras.json of LaCT: a list of photos with size, camera numbers in pixels and world-to-camera matrices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import UserError
from data.files import PhotoFinder, read_json
from data.frames import Capture, Numbers
from data.parsers.listing import list_frames, shorten_names
from data.parsers.values import camera_to_world, image_size, matrix, number

NAME = "LaCT opencv_cameras"


def matches(path: Path) -> bool:
    """Whether this is an opencv_cameras.json or a folder with one."""
    if path.is_dir():
        return (path / "opencv_cameras.json").is_file()
    return path.name == "opencv_cameras.json"


def parse(path: Path) -> Capture:
    """List the photos of the file, which is a list or an object with the list under `frames`."""
    file = path / "opencv_cameras.json" if path.is_dir() else path
    content = read_json(file)
    frames = content.get("frames") if isinstance(content, dict) else content
    if not isinstance(frames, list):
        raise UserError(f"{file} is not a list of photos. Each should have w, h, fx, fy, cx, cy, w2c and file_path.")
    return Capture(shorten_names(list_frames(frames, PhotoFinder(file.parent), "file_path", _read)))


def _read(frame: Mapping[str, Any]) -> tuple[np.ndarray, Numbers]:
    fx, fy, cx, cy = (number([frame], key) for key in ("fx", "fy", "cx", "cy"))
    return camera_to_world(matrix(frame, "w2c")), Numbers(fx, fy, cx, cy, declared=image_size(frame))
