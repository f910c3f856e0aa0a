"""Scenes that `nvs prepare` makes: folders that appear when they are complete and know how they were made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from data.errors import UserError

OPENCV_TO_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])
RECIPE = "made_by_nvs_prepare"
"""Key in transforms.json of all that decides how the scene comes out."""


def make_scene(
    folder: Path, recipe: dict[str, Any], overwrite: bool, write_views: Callable[[Path], dict[str, Any]]
) -> bool:
    """Make the scene `folder`, which appears when complete; False if it was there, made the same way.

    `write_views` writes the pictures into the folder that it is given and returns the cameras as transforms.json has
    them.
    """
    if folder.exists() and not may_replace(folder, recipe, overwrite):
        return False
    partial = partial_folder(folder)
    remove_partial_scene(folder)
    try:
        (partial / "images").mkdir(parents=True)
        text = json.dumps({**write_views(partial / "images"), RECIPE: recipe}, indent=1)
        (partial / "transforms.json").write_text(text + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        remove_partial_scene(folder)
    return True


def partial_folder(folder: Path) -> Path:
    """Where the scene `folder` grows until it is complete."""
    return folder.with_name(f".{folder.name}.part")


def remove_partial_scene(folder: Path) -> None:
    """Remove what an interrupted run has left of the scene `folder`."""
    shutil.rmtree(partial_folder(folder), ignore_errors=True)


def may_replace(
    folder: Path, recipe: dict[str, Any], overwrite: bool, ours: tuple[str, ...] = ("images", "transforms.json")
) -> bool:
    """Whether to write over `folder`: False if it holds this very scene; what holds more than `ours` is refused."""
    if not folder.is_dir():
        raise UserError(f"{folder} is a file. Choose another place for the scene.")
    entries = {path.name for path in folder.iterdir()}
    try:
        made = json.loads((folder / "transforms.json").read_text(encoding="utf-8"))[RECIPE]
    except (OSError, ValueError, LookupError, TypeError):
        made = None
    if not entries:
        return True
    if made == recipe and not overwrite:
        return False
    if made is None or entries - set(ours):
        raise UserError(f"{folder} holds other files, which are kept. Choose another place for the scene.")
    if not overwrite:
        raise UserError(f"{folder} holds a scene made another way. Choose another place or add --overwrite.")
    return True


def describe_cameras(
    c2w: Float[np.ndarray, "v 4 4"], intrinsics: Float[np.ndarray, " 4"], size: tuple[int, int]
) -> dict[str, Any]:
    """Cameras with OpenCV axes in nerfstudio's convention (OpenGL axes)."""
    fx, fy, cx, cy = (float(x) for x in intrinsics)
    camera = {"camera_model": "OPENCV", "fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, "w": size[1], "h": size[0]}
    matrices = [(matrix @ OPENCV_TO_OPENGL).tolist() for matrix in c2w]
    frames = [{"file_path": f"images/{i:04d}.png", "transform_matrix": m} for i, m in enumerate(matrices)]
    return {**camera, "frames": frames}
