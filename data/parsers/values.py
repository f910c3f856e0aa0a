"""Values out of JSON files that anybody may have written: each is checked, and a bad one spoils only its frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import UserError
from data.files import read_json
from data.frames import BadFrame

MAX_SIDE = 1_000_000


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object with a list of frames."""
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("frames"), list):
        raise UserError(f"{path} has no list of frames. It should be an object with the key 'frames'.")
    return content


def number(sources: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The number under a key in the first source that has it; None if none has; raises BadFrame."""
    value = next((source[key] for source in sources if source.get(key) is not None), None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise BadFrame(f"{key} is not a number")
    if abs(value) > 1e12:
        raise BadFrame(f"{key} is too large")
    return float(value)


def image_size(source: Mapping[str, Any]) -> tuple[int, int] | None:
    """The size (h, w) stated under "h" and "w"; None if either is absent; raises BadFrame."""
    h, w = number([source], "h"), number([source], "w")
    if h is None or w is None:
        return None
    if not (1 <= h <= MAX_SIDE and 1 <= w <= MAX_SIDE):
        raise BadFrame(f"impossible size {w:g}x{h:g}")
    return round(h), round(w)


def matrix(source: Mapping[str, Any], key: str) -> np.ndarray:
    """A matrix of floats, of any shape; raises BadFrame."""
    if key not in source:
        raise BadFrame(f"no {key}")
    try:
        return np.asarray(source[key], dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadFrame(f"{key} is not a matrix of numbers") from error


def camera_to_world(w2c: np.ndarray) -> np.ndarray:
    """Invert a world-to-camera matrix (3x4 or 4x4); raises BadFrame."""
    if w2c.shape == (3, 4):
        w2c = np.vstack([w2c, [0, 0, 0, 1]])
    if w2c.shape != (4, 4) or not np.isfinite(w2c).all():
        return w2c  # told in the same words as any other bad matrix, when the frame is checked
    try:
        return np.linalg.inv(w2c)
    except np.linalg.LinAlgError as error:
        raise BadFrame("zero rotation in the matrix") from error


def opengl_to_opencv(c2w: np.ndarray) -> np.ndarray:
    """Turn a camera with OpenGL axes (y up, z backwards) into OpenCV's: its own y and z axes change sign."""
    if c2w.ndim != 2 or c2w.shape[1] != 4:
        return c2w
    return c2w * np.array([1.0, -1.0, -1.0, 1.0])


def text(source: Mapping[str, Any], key: str) -> str:
    """A non-empty string; raises BadFrame."""
    value = source.get(key)
    if not isinstance(value, str) or not value:
        raise BadFrame(f"no {key}")
    return value
