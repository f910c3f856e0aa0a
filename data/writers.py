"""Captures written in a format that other programs read: photos below images/ and one camera file or model.

Photos are copied as they are. Where the format cannot express a lens or an EXIF turn, the photo is straightened or
turned and written as PNG. The world stays that of the capture.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float64
from PIL import Image

from data.background import Color, composite, lift_off
from data.distortion import PINHOLE, Distortion, undistort
from data.errors import UserError
from data.files import PHOTO_SUFFIXES
from data.frames import Frame
from data.images import decode
from data.parsers.colmap_models import LENS_MODELS
from data.scene import Scene

SceneFormat = Literal["transforms", "colmap", "opencv-json"]
COLMAP_MODELS = {
    "none": "PINHOLE",
    "opencv": "FULL_OPENCV",
    "fisheye": "OPENCV_FISHEYE",
    "thin_prism_fisheye": "THIN_PRISM_FISHEYE",
    "fov": "FOV",
}
# Distortion that each format expresses, besides none.
LENSES: dict[SceneFormat, tuple[str, ...]] = {
    "transforms": ("opencv", "fisheye"),
    "colmap": tuple(COLMAP_MODELS),
    "opencv-json": (),
}
OUR_ENTRIES = {"images", "sparse", "transforms.json", "opencv_cameras.json"}


@dataclass(frozen=True)
class WrittenFrame:
    """A photo in the new capture: its name below images/ and its camera (OpenCV axes, pixels of `image_size`)."""

    name: str
    c2w: Float64[np.ndarray, "4 4"]
    intrinsics: tuple[float, float, float, float]
    image_size: tuple[int, int]
    distortion: Distortion
    copied: bool


def write_scene(
    scene: Scene,
    folder: Path,
    to: SceneFormat,
    overwrite: bool = False,
    on_frame: Callable[[], None] = lambda: None,
) -> list[WrittenFrame]:
    """Write all frames of a scene; the folder appears when it is complete, and replaces only what this wrote before.

    `on_frame` is called after each photo.
    """
    _check_target(scene, folder, overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replace_folder(folder) as temporary:
        frames, taken = [], set()
        for frame in scene.frames:
            frames.append(_write_photo(frame, temporary / "images", to, scene.background, taken))
            on_frame()
        split = {name: [frames[i].name for i in indices] for name, indices in scene.split.items()}
        _write_cameras(frames, split, temporary, to)
    return frames


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, which takes its place when the block ends well and is removed otherwise."""
    folder = check_replaceable(folder)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=".part-", dir=folder.parent))
    except OSError as error:
        raise UserError(
            f"Nothing can be written to {folder.parent} ({error.strerror}): choose another place."
        ) from error
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o777 & ~umask)  # mkdtemp makes folders private
        _move_into_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_replaceable(folder: Path) -> Path:
    """The absolute path of a folder that another one is to replace; raises UserError where that is not possible."""
    folder = Path(os.path.abspath(folder))
    if folder == Path.cwd():
        raise UserError(f"{folder} is the folder that you are in, which cannot be replaced: give a new folder in it.")
    if os.path.ismount(folder):
        raise UserError(f"{folder} is the top of a disk or mount, which cannot be replaced: give a new folder in it.")
    return folder


def write_transforms(frames: list[WrittenFrame], split: dict[str, list[str]], file: Path) -> None:
    """transforms.json of nerfstudio: OpenGL axes; numbers once if all photos share them, else for each frame."""
    numbers = [_transforms_numbers(frame) for frame in frames]
    shared = numbers[0] if all(n == numbers[0] for n in numbers) else {}
    entries = []
    for frame, own in zip(frames, numbers, strict=True):
        opengl = frame.c2w * np.array([1.0, -1.0, -1.0, 1.0])
        entry = {"file_path": f"images/{frame.name}", "transform_matrix": opengl.tolist()}
        entries.append(entry if shared else {**entry, **own})
    names = {f"{part}_filenames": [f"images/{name}" for name in some] for part, some in split.items()}
    file.write_text(json.dumps({**shared, **names, "frames": entries}, indent=1), encoding="utf-8")


def write_opencv_json(frames: list[WrittenFrame], file: Path) -> None:
    """opencv_cameras.json of LaCT: world-to-camera matrices and pixels."""
    entries = []
    for frame in frames:
        (h, w), (fx, fy, cx, cy) = frame.image_size, frame.intrinsics
        camera = {"w": w, "h": h, "fx": fx, "fy": fy, "cx": cx, "cy": cy, "w2c": np.linalg.inv(frame.c2w).tolist()}
        entries.append({"file_path": f"images/{frame.name}", **camera})
    file.write_text(json.dumps(entries, indent=1), encoding="utf-8")


def write_colmap(frames: list[WrittenFrame], folder: Path) -> None:
    """A binary sparse model without 3D points; cameras that are equal are shared."""
    folder.mkdir(parents=True)
    identities = {lens.name: number for number, lens in LENS_MODELS.items()}
    cameras: dict[tuple[Any, ...], int] = {}
    images = [struct.pack("<Q", len(frames))]
    for number, frame in enumerate(frames, 1):
        model, parameters = _colmap_camera(frame)
        camera = cameras.setdefault((identities[model], *frame.image_size, *parameters), len(cameras) + 1)
        w2c = np.linalg.inv(frame.c2w)
        pose = (*quaternion(w2c[:3, :3]), *w2c[:3, 3])
        images.append(struct.pack("<I7dI", number, *pose, camera) + os.fsencode(frame.name) + b"\0" + bytes(8))
    content = [struct.pack("<Q", len(cameras))]
    for (model, h, w, *parameters), number in cameras.items():
        content.append(struct.pack(f"<IiQQ{len(parameters)}d", number, model, w, h, *parameters))
    (folder / "cameras.bin").write_bytes(b"".join(content))
    (folder / "images.bin").write_bytes(b"".join(images))
    (folder / "points3D.bin").write_bytes(bytes(8))


def quaternion(rotation: Float64[np.ndarray, "3 3"]) -> tuple[float, float, float, float]:
    """Unit quaternion w x y z (w >= 0) of a rotation matrix.

    The eigenvector of the largest eigenvalue of Bar-Itzhack's symmetric matrix (2000), which has no special cases.
    """
    (a, b, c), (d, e, f), (g, h, i) = rotation
    symmetric = np.array(
        [
            [a + e + i, h - f, c - g, d - b],
            [h - f, a - e - i, b + d, c + g],
            [c - g, b + d, e - a - i, f + h],
            [d - b, c + g, f + h, i - a - e],
        ]
    )
    w, x, y, z = np.linalg.eigh(symmetric)[1][:, -1].tolist()
    return (w, x, y, z) if w >= 0 else (-w, -x, -y, -z)


def _check_target(scene: Scene, folder: Path, overwrite: bool) -> None:
    place = folder.resolve()
    if any(file.resolve().is_relative_to(place) for file in [scene.path, *(f.path for f in scene.frames)]):
        raise UserError(f"{folder} holds the capture that is to be converted. Choose another place.")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file. Give a folder.")
    entries = {entry.name for entry in folder.iterdir()}
    if entries and not overwrite:
        raise UserError(f"{folder} is not empty. Choose another place, or replace what it holds with --overwrite.")
    if foreign := sorted(entries - OUR_ENTRIES):
        raise UserError(f"{folder} also holds {foreign[0]}, which is not replaced. Choose another place or move that.")


def _write_photo(frame: Frame, folder: Path, to: SceneFormat, background: Color, taken: set[str]) -> WrittenFrame:
    keeps_lens = frame.distortion.is_pinhole or frame.distortion.model in LENSES[to]
    copied = keeps_lens and frame.orientation == 1
    name = _unused_name(frame, frame.path.suffix if copied else ".png", taken)
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    intrinsics, distortion = frame.intrinsics, frame.distortion if keeps_lens else PINHOLE
    if distortion.is_pinhole:
        distortion = PINHOLE
    if copied:
        shutil.copyfile(frame.path, file)
    else:
        if not keeps_lens:
            fx, fy, cx, cy = intrinsics
            intrinsics = (fx * frame.zoom, fy * frame.zoom, cx, cy)
        _write_png(frame, file, not keeps_lens, background)
    return WrittenFrame(name, frame.c2w, intrinsics, frame.image_size, distortion, copied)


def _write_png(frame: Frame, file: Path, straighten: bool, background: Color) -> None:
    pixels = decode(frame.path, frame.orientation)
    if straighten:
        color, alpha = composite(pixels, background)
        straight = undistort(torch.cat([color, alpha]), frame.distortion, frame.intrinsics, frame.zoom)
        pixels = straight[:3] if len(pixels) == 3 else lift_off(straight, background)
    content = (pixels * 255).round().byte().permute(1, 2, 0).contiguous()
    Image.fromarray(content.numpy()).save(file, format="PNG")


def _unused_name(frame: Frame, suffix: str, taken: set[str]) -> str:
    """The frame's name with the suffix of its new file, kept below images/ and told apart from those in use."""
    parts = [part for part in PurePosixPath(frame.name.replace("\\", "/")).parts if part not in ("/", "..")]
    if len(parts) > 1 and parts[0].partition("_")[0] == "images":
        parts = parts[1:]
    path = PurePosixPath(*parts) if parts else PurePosixPath(frame.path.name)
    stem = str(path.with_suffix("") if path.suffix.lower() in PHOTO_SUFFIXES else path)
    name, number = f"{stem}{suffix}", 2
    while name.lower() in taken:
        name, number = f"{stem}_{number}{suffix}", number + 1
    taken.add(name.lower())
    return name


def _write_cameras(frames: list[WrittenFrame], split: dict[str, list[str]], folder: Path, to: SceneFormat) -> None:
    if to == "transforms":
        write_transforms(frames, split, folder / "transforms.json")
    elif to == "opencv-json":
        write_opencv_json(frames, folder / "opencv_cameras.json")
    else:
        write_colmap(frames, folder / "sparse" / "0")


def _transforms_numbers(frame: WrittenFrame) -> dict[str, Any]:
    (h, w), (fx, fy, cx, cy) = frame.image_size, frame.intrinsics
    numbers = {"w": w, "h": h, "fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy}
    if frame.distortion.model == "fisheye":
        names, model = ("k1", "k2", "k3", "k4"), "OPENCV_FISHEYE"
    else:
        names = ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")
        model = "FULL_OPENCV" if any(frame.distortion.parameters[5:]) else "OPENCV"
    lens = {name: p for name, p in zip(names, frame.distortion.parameters, strict=False) if p}
    return {"camera_model": "PINHOLE" if frame.distortion.is_pinhole else model, **numbers, **lens}


def _colmap_camera(frame: WrittenFrame) -> tuple[str, tuple[float, ...]]:
    model, lens = COLMAP_MODELS[frame.distortion.model], frame.distortion.parameters
    if model == "FULL_OPENCV":
        lens = (*lens, *(0.0,) * (8 - len(lens)))
        model, lens = (model, lens) if any(lens[4:]) else ("OPENCV", lens[:4])
    return model, (*frame.intrinsics, *lens)


def _move_into_place(temporary: Path, folder: Path) -> None:
    """Rename the complete folder; what stood in its place goes only after that has worked."""
    if not folder.exists() or not any(folder.iterdir()):
        os.replace(temporary, folder)
        return
    old = Path(tempfile.mkdtemp(prefix=".old-", dir=folder.parent))
    try:
        os.replace(folder, old)
    except OSError:
        old.rmdir()
        raise
    try:
        os.replace(temporary, folder)
    except OSError:
        os.replace(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)
