"""Camera paths as JSON files: our own layout, nerfstudio's `camera_path.json`, and a `transforms.json` as exact views.

Cameras in files are in the world of the capture, so that a path outlives any scene state.

Our own layout:

    {"format": "nvs-camera-path", "version": 1,
     "image_size": [height, width], "fps": 24, "loop": false,
     "frames": [{"c2w": [[4 numbers] x 4], "intrinsics": [fx, fy, cx, cy]}, ...]}

`c2w` is camera-to-world with OpenCV axes (x right, y down, z forward); intrinsics are pixels of `image_size` with the
centre of the top-left pixel at (0.5, 0.5). With "keyframes" in place of "frames", the cameras between them are
interpolated on loading: "num_frames" in all, or "frames_per_segment" from each keyframe to the next; "loop" then closes
the path, and "smoothness" (0 to 1) rounds it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from data import Cameras, UserError, read_json, write_atomic
from nvs.interpolation import check_cameras, interpolate, orthonormal, spread

DEFAULT_FPS = 24.0
OPENGL_TO_OPENCV = torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64))


@dataclass(frozen=True)
class CameraPath:
    """Cameras in the order of time (float64, world of the capture), with their speed."""

    cameras: Cameras
    fps: float = DEFAULT_FPS
    """Frames per second."""
    loop: bool = False
    """Whether the first camera follows the last one."""


def load(path: str | os.PathLike[str]) -> Cameras:
    """The cameras of a path file, in the world of the capture (float64)."""
    return read_path(path).cameras


def save(
    path: str | os.PathLike[str],
    cameras: Cameras,
    fps: float = DEFAULT_FPS,
    loop: bool = False,
    layout: Literal["nvs", "nerfstudio"] = "nvs",
) -> None:
    """Write cameras (in the world of the capture) as a path file that `load` reads back."""
    check_cameras(cameras)
    _check_fps(fps, "the path")
    encode = _to_nerfstudio if layout == "nerfstudio" else _to_nvs
    text = json.dumps(encode(CameraPath(cameras.to("cpu", torch.float64), fps, loop)), indent=1)
    with write_atomic(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_path(path: str | os.PathLike[str]) -> CameraPath:
    """Read a path file in any of the three layouts; the module's docstring documents ours."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path} does not exist: give the JSON file of a camera path.")
    content = read_json(path)
    parse = _find_parser(content)
    if parse is None:
        raise UserError(
            f'{path} is not a camera path: expected "camera_path" (nerfstudio), "frames" with "transform_matrix" '
            f'(transforms.json) or "format": "nvs-camera-path" with "frames" or "keyframes".'
        )
    try:
        found = parse(content)
        if found.cameras.num_views == 0:
            raise UserError("it has no cameras; add some in the program that wrote it.")
        check_cameras(found.cameras)
        _check_fps(found.fps, '"fps"')
    except UserError as error:
        raise UserError(f"{path} cannot be used as a camera path: {error}") from None
    except KeyError as error:
        raise UserError(f"{path} cannot be used as a camera path: {error} is missing.") from None
    except OverflowError:
        raise UserError(f"{path} cannot be used as a camera path: a number is infinite or too large.") from None
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} cannot be used as a camera path: a value has the wrong type ({error}).") from None
    repaired = Cameras(orthonormal(found.cameras.c2w), found.cameras.intrinsics, found.cameras.image_size)
    return CameraPath(repaired, found.fps, found.loop)


def _find_parser(content: Any) -> Callable[[dict], CameraPath] | None:
    if not isinstance(content, dict):
        return None
    if "camera_path" in content:
        return _from_nerfstudio
    if content.get("format") == "nvs-camera-path" and ("frames" in content or "keyframes" in content):
        return _from_nvs
    frames = content.get("frames")
    if isinstance(frames, list) and frames and isinstance(frames[0], dict) and "transform_matrix" in frames[0]:
        return _from_transforms
    return None


def _from_nvs(content: dict) -> CameraPath:
    entries = content["frames"] if "frames" in content else content["keyframes"]
    h, w = content["image_size"]
    cameras = Cameras(
        _stack([_matrix(entry["c2w"]) for entry in entries], 4, 4),
        _stack([_numbers(entry["intrinsics"], 4, "intrinsics") for entry in entries], 4),
        _size(h, w),
    )
    loop = bool(content.get("loop", False))
    if "frames" not in content:
        smoothness = float(content.get("smoothness", 0.0))
        if "num_frames" in content:
            cameras = spread(cameras, int(content["num_frames"]), loop, smoothness)
        else:
            cameras = interpolate(cameras, int(content["frames_per_segment"]), loop, smoothness)
    return CameraPath(cameras, float(content.get("fps", DEFAULT_FPS)), loop)


def _to_nvs(path: CameraPath) -> dict:
    frames = zip(path.cameras.c2w.tolist(), path.cameras.intrinsics.tolist(), strict=True)
    return {
        "format": "nvs-camera-path",
        "version": 1,
        "image_size": list(path.cameras.image_size),
        "fps": path.fps,
        "loop": path.loop,
        "frames": [{"c2w": c2w, "intrinsics": intrinsics} for c2w, intrinsics in frames],
    }


def _from_nerfstudio(content: dict) -> CameraPath:
    """Cameras have OpenGL axes and a vertical field of view in degrees; pixels are square, `aspect` says no more."""
    kind = content.get("camera_type", "perspective")
    if kind != "perspective":
        raise UserError(f'its camera type is "{kind}"; only perspective cameras can be rendered.')
    entries = content["camera_path"]
    h, w = _size(content["render_height"], content["render_width"])
    intrinsics = [_lens(_focal(entry["fov"], h), h, w) for entry in entries]
    cameras = Cameras(
        _stack([_matrix(entry["camera_to_world"]) @ OPENGL_TO_OPENCV for entry in entries], 4, 4),
        _stack(intrinsics, 4),
        (h, w),
    )
    seconds = float(content.get("seconds") or 0)
    fps = float(content.get("fps") or (len(entries) / seconds if seconds > 0 else DEFAULT_FPS))
    return CameraPath(cameras, fps, bool(content.get("is_cycle", False)))


def _to_nerfstudio(path: CameraPath) -> dict:
    cameras, (h, w) = path.cameras, path.cameras.image_size
    fx, fy, cx, cy = cameras.intrinsics.unbind(-1)
    if ((fx - fy).abs() > 1e-4 * fy).any() or ((cx - w / 2).abs() + (cy - h / 2).abs() > 1e-2).any():
        raise UserError(
            "nerfstudio's layout holds only square pixels and a centred principal point: save in our own layout."
        )
    fov = torch.rad2deg(2 * torch.atan(h / 2 / fy)).tolist()
    matrices = (cameras.c2w @ OPENGL_TO_OPENCV).flatten(-2).tolist()
    return {
        "camera_type": "perspective",
        "render_height": h,
        "render_width": w,
        "fps": path.fps,
        "seconds": cameras.num_views / path.fps,
        "is_cycle": path.loop,
        "smoothness_value": 0.0,
        "keyframes": [],
        "camera_path": [
            {"camera_to_world": matrix, "fov": angle, "aspect": w / h}
            for matrix, angle in zip(matrices, fov, strict=True)
        ],
    }


def _from_transforms(content: dict) -> CameraPath:
    """The views of a nerfstudio capture as pinhole cameras; a frame's own lens numbers win over those of the file."""
    c2w, intrinsics, sizes = [], [], set()
    for frame in content["frames"]:
        lens = {**content, **frame}
        h, w = _size(lens["h"], lens["w"])
        angle = lens.get("camera_angle_x")
        fx = float(lens["fl_x"]) if "fl_x" in lens or angle is None else w / 2 / math.tan(float(angle) / 2)
        intrinsics.append(_lens(fx, h, w, lens.get("fl_y"), lens.get("cx"), lens.get("cy")))
        c2w.append(_matrix(frame["transform_matrix"]) @ OPENGL_TO_OPENCV)
        sizes.add((h, w))
    if len(sizes) != 1:
        raise UserError(f"its frames have several sizes (h, w), {sorted(sizes)}; a video needs one.")
    return CameraPath(Cameras(torch.stack(c2w), torch.stack(intrinsics), sizes.pop()))


def _lens(fx: float, h: int, w: int, fy: Any = None, cx: Any = None, cy: Any = None) -> Float[Tensor, " 4"]:
    """Intrinsics in pixels; what is not known is square pixels and the middle of the image."""
    fy, cx, cy = (float(x) if x is not None else default for x, default in ((fy, fx), (cx, w / 2), (cy, h / 2)))
    return torch.tensor([fx, fy, cx, cy], dtype=torch.float64)


def _focal(fov: Any, h: int) -> float:
    """Focal length in pixels from a vertical field of view in degrees."""
    fov = float(fov)
    if not 0 < fov < 180:
        raise UserError(f"a field of view is {fov:g} degrees; it must be between 0 and 180.")
    return h / 2 / math.tan(math.radians(fov) / 2)


def _matrix(value: Any) -> Float[Tensor, "4 4"]:
    """Camera-to-world from 16 numbers row by row, or from 3 or 4 rows of four."""
    numbers = torch.as_tensor(value, dtype=torch.float64).flatten()
    if len(numbers) not in (12, 16):
        raise UserError(f"a camera-to-world matrix has {len(numbers)} numbers; it needs 16, row by row.")
    last = torch.tensor([0.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    if len(numbers) == 16 and not torch.equal(numbers[12:], last):
        raise UserError("the last row of a camera-to-world matrix is not 0 0 0 1; write the numbers row by row.")
    return torch.cat([numbers[:12], last]).reshape(4, 4)


def _numbers(value: Any, count: int, name: str) -> Tensor:
    numbers = torch.as_tensor(value, dtype=torch.float64)
    if numbers.shape != (count,):
        raise UserError(f'"{name}" needs {count} numbers.')
    return numbers


def _stack(tensors: list[Tensor], *shape: int) -> Tensor:
    return torch.stack(tensors) if tensors else torch.zeros(0, *shape, dtype=torch.float64)


def _size(h: Any, w: Any) -> tuple[int, int]:
    if not math.isfinite(float(h) + float(w)) or int(h) != float(h) or int(w) != float(w) or int(h) < 1 or int(w) < 1:
        raise UserError(f"its image size is {h} x {w} pixels (height x width); both must be whole and positive.")
    return int(h), int(w)


def _check_fps(fps: float, what: str) -> None:
    if not (math.isfinite(fps) and fps > 0):
        raise UserError(f"{what} is {fps:g} frames per second; it must be more than 0.")
