"""Camera paths of the viewer: keyframes in the scene's frame, and the files that `nvs render --trajectory` takes.

A path is first written as such a file and then read back, also for the preview and the film, so that all three show
the same cameras.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from apps.viewer.frames import Shot, read_pose
from apps.viewer.scenes import OpenScene
from apps.viewer.sizes import Size
from apps.viewer.workspace import Limits
from data import Cameras, UserError, every, read_json
from nvs import trajectory
from nvs.trajectory import CameraPath

Preset = Literal["orbit", "spiral"]
PRESET_KEYFRAMES = {"orbit": 8, "spiral": 16}
MAX_KEYFRAMES = 100
"""Keyframes kept of a file that lists more cameras."""


def to_file_content(path: dict[str, Any], scene: OpenScene, limits: Limits) -> dict[str, Any]:
    """The path as the content of a file: keyframes in the world of the capture, and how to move between them."""
    keyframes = path.get("keyframes")
    if not isinstance(keyframes, list) or not keyframes:
        raise UserError("There are no keyframes yet: add the current view as one.")
    if len(keyframes) > limits.photos or not all(isinstance(k, dict) for k in keyframes):
        raise UserError(f"A path can have at most {limits.photos} keyframes.")
    loop = path.get("loop") is True
    fps = _between(path.get("fps", 24), 1, 120, "frames per second")
    seconds = _between(path.get("seconds", 4), 0.01, 3600, "the duration in seconds")
    count = max(1, round(seconds * fps))
    if count > limits.frames:
        raise UserError(f"The path would have {count} pictures; at most {limits.frames} are possible.")
    cameras = _keyframe_cameras(keyframes, scene)
    return {
        "format": "nvs-camera-path",
        "version": 1,
        "image_size": list(scene.size),
        "fps": fps,
        "loop": loop,
        "smoothness": _between(path.get("smoothness", 0), 0, 1, "the smoothness"),
        "num_frames": count,
        "keyframes": [
            {"c2w": c2w, "intrinsics": lens}
            for c2w, lens in zip(cameras.c2w.tolist(), cameras.intrinsics.tolist(), strict=True)
        ],
    }


def film_cameras(content: dict[str, Any], scene: OpenScene) -> tuple[Cameras, float]:
    """Every camera of a file's content in the scene's frame, as `nvs render` reads it, and the frames per second."""
    path = _read(content)
    return path.cameras.transform(_world_to_scene(scene)), path.fps


def poses(cameras: Cameras) -> list[dict[str, Any]]:
    """Cameras as a browser takes them: c2w as 16 numbers, and the horizontal view angle in degrees."""
    w = cameras.image_size[1]
    return [
        {"c2w": [x for row in c2w for x in row], "fov": math.degrees(2 * math.atan(w / 2 / lens[0]))}
        for c2w, lens in zip(cameras.c2w.tolist(), cameras.intrinsics.tolist(), strict=True)
    ]


def from_text(text: str, scene: OpenScene, limits: Limits) -> dict[str, Any]:
    """The path of a file, ours or nerfstudio's; of a long list of cameras an even selection becomes keyframes."""
    if len(text) > 20 * 2**20:
        raise UserError("This file is too large for a camera path.")
    with tempfile.TemporaryDirectory(prefix="nvs-path-") as folder:
        file = Path(folder) / "path.json"
        file.write_text(text, encoding="utf-8")
        content = read_json(file)
    has_keyframes = isinstance(content, dict) and "keyframes" in content and "frames" not in content
    path = _read(_keyframes_alone(content) if has_keyframes else content)
    listed = path.cameras.num_views
    count, smoothness = _plan(content, listed, path.loop, limits) if has_keyframes else (listed, 0.0)
    if max(listed, count) > limits.frames:
        raise UserError(f"This path has {max(listed, count)} cameras; at most {limits.frames} are possible.")
    kept = every(range(listed), MAX_KEYFRAMES)
    moved = path.cameras.select(list(kept)).transform(_world_to_scene(scene))
    return {
        "keyframes": poses(moved),
        "loop": path.loop,
        "seconds": count / path.fps,
        "fps": path.fps,
        "smoothness": 1.0 if listed > len(kept) else smoothness,
    }


def _keyframes_alone(content: dict[str, Any]) -> dict[str, Any]:
    """The content of a file whose keyframes are all there is."""
    kept = {name: value for name, value in content.items() if name not in ("num_frames", "smoothness")}
    return {**kept, "frames_per_segment": 1}


def _plan(content: dict[str, Any], keyframes: int, loop: bool, limits: Limits) -> tuple[int, float]:
    """How many cameras a file of keyframes stands for, and how smooth the way is."""
    smoothness = _between(content.get("smoothness", 0), 0, 1, "the smoothness")
    if "num_frames" in content:
        return int(_between(content["num_frames"], 1, limits.frames, "num_frames")), smoothness
    steps = int(_between(content.get("frames_per_segment", 1), 1, limits.frames, "frames_per_segment"))
    return (keyframes * steps if loop else (keyframes - 1) * steps + 1), smoothness


def preset(name: str, scene: OpenScene, seconds: float, fps: float) -> dict[str, Any]:
    """A ready path around the scene, with the mean lens of the input cameras."""
    if name not in get_args(Preset):
        raise UserError(f"There is no path {name}: choose {' or '.join(get_args(Preset))}.")
    make = trajectory.orbit if name == "orbit" else trajectory.spiral
    place = scene.surroundings
    up = (place.up[0], place.up[1], place.up[2])
    centre = (place.centre[0], place.centre[1], place.centre[2])
    cameras = make(scene.state.cameras, PRESET_KEYFRAMES[name], centre=centre, up=up)
    return {"keyframes": poses(cameras), "loop": True, "seconds": seconds, "fps": fps, "smoothness": 1.0}


def _keyframe_cameras(keyframes: list[dict[str, Any]], scene: OpenScene) -> Cameras:
    """Keyframes at the scene's size, in the world of the capture (float64)."""
    shots = [
        Shot(read_pose(key.get("c2w")), None, _between(key.get("fov"), 1, 170, "the field of view"))
        for key in keyframes
    ]
    cameras = [shot.cameras(scene.size) for shot in shots]
    joined = Cameras(torch.cat([c.c2w for c in cameras]), torch.cat([c.intrinsics for c in cameras]), scene.size)
    return joined.transform(_world_to_scene(scene).inverse())


def _world_to_scene(scene: OpenScene) -> torch.Tensor:
    return scene.state.with_batch().world_to_scene[0].cpu().double()


def _read(content: Any) -> CameraPath:
    """Read a path as `nvs render` does, from a file."""
    with tempfile.TemporaryDirectory(prefix="nvs-path-") as folder:
        file = Path(folder) / "path.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        try:
            return trajectory.read_path(file)
        except UserError as error:
            raise UserError(str(error).replace(str(file), "The file")) from None


def _between(value: Any, low: float, high: float, what: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        raise UserError(f"{what[0].upper()}{what[1:]} must be a number from {low:g} to {high:g}.")
    return float(value)


def size_of_film(value: Any, limits: Limits) -> Size:
    """A size (h, w) that a film may have; any, not only whole patches."""
    sides = list(value) if isinstance(value, list | tuple) else []
    if len(sides) != 2 or not all(isinstance(x, int) and not isinstance(x, bool) and x >= 16 for x in sides):
        raise UserError("The size of a film is a height and a width in pixels, 16 or more each.")
    if sides[0] * sides[1] > limits.film_pixels:
        raise UserError(
            f"{sides[0]}x{sides[1]} pixels are too many for a film made here: at most "
            f"{limits.film_pixels / 1e6:.1f} million are possible. Use nvs render for larger ones."
        )
    return sides[0], sides[1]
