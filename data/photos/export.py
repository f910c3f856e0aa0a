"""Writes a reconstruction as a capture: straightened pictures, transforms.json, and a COLMAP model that agrees.

Pictures are made from the photos themselves in one go, so they are resized and straightened once and keep their alpha.
All photos of one camera come out with the same size.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from data.distortion import undistort, zoom_to_fill
from data.photos.collect import Photo, Step, load_scaled
from data.photos.features import photo_index, require_pycolmap
from data.photos.reconstruct import PlacedCamera, read_cameras

JPEG_QUALITY = 95
OPENCV_TO_OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])


def export(model: Path, photos: Sequence[Photo], folder: Path, recipe: dict[str, Any], on_step: Step) -> None:
    """Write images/, transforms.json (nerfstudio's dialect) and sparse/0 (COLMAP, binary) into an empty `folder`."""
    reconstruction = require_pycolmap().Reconstruction(model)
    cameras = read_cameras(reconstruction)
    names: dict[int, str] = {}
    for done, camera in enumerate(cameras):
        on_step("writing pictures", done, len(cameras))
        names[camera.photo] = write_picture(photos[camera.photo], camera, folder / "images")
    on_step("writing pictures", len(cameras), len(cameras))
    text = json.dumps({**describe(cameras, names), "made_by_nvs_prepare": recipe}, indent=1)
    (folder / "transforms.json").write_text(text + "\n", encoding="utf-8")
    straighten(reconstruction, cameras, names)
    (folder / "sparse" / "0").mkdir(parents=True)
    reconstruction.write_binary(folder / "sparse" / "0")


def write_picture(photo: Photo, camera: PlacedCamera, folder: Path) -> str:
    """Straighten and save one photo; returns its name below `folder`, .png if it has transparency, else .jpg."""
    pixels = load_scaled(photo.path, camera.size)
    straight = undistort_color(pixels, camera)
    picture = Image.fromarray((straight * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())
    name = photo.name + (".png" if len(pixels) == 4 else ".jpg")
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".png"):
        picture.save(folder / name)
    else:
        picture.save(folder / name, quality=JPEG_QUALITY, subsampling=0)
    return name


def undistort_color(pixels: Float[Tensor, "c h w"], camera: PlacedCamera) -> Float[Tensor, "c h w"]:
    """Straighten RGB, or RGB with straight alpha (premultiplied meanwhile, so that hidden colours do not bleed)."""
    zoom = zoom_to_fill(camera.distortion, camera.intrinsics, camera.size)
    if len(pixels) == 3:
        return undistort(pixels, camera.distortion, camera.intrinsics, zoom)
    color, alpha = pixels[:3], pixels[3:]
    straight = undistort(torch.cat([color * alpha, alpha]), camera.distortion, camera.intrinsics, zoom)
    color, alpha = straight[:3], straight[3:]
    return torch.cat([(color / alpha.clamp(min=1e-6)).clamp(0, 1), alpha])


def describe(cameras: Sequence[PlacedCamera], names: dict[int, str]) -> dict[str, Any]:
    """The content of transforms.json: c2w with OpenGL axes; numbers at the top if all photos share them."""
    numbers = [_pinhole_numbers(camera) for camera in cameras]
    shared = numbers[0] if all(n == numbers[0] for n in numbers) else {}
    frames = [
        {
            "file_path": f"images/{names[camera.photo]}",
            **({} if shared else own),
            "transform_matrix": (camera.c2w @ OPENCV_TO_OPENGL).tolist(),
        }
        for camera, own in zip(cameras, numbers, strict=True)
    ]
    return {"camera_model": "PINHOLE", **shared, "frames": frames}


def straighten(reconstruction: Any, cameras: Sequence[PlacedCamera], names: dict[int, str]) -> None:
    """Turn a reconstruction's cameras into PINHOLE, move its image points along, and rename its images."""
    pinhole_model = require_pycolmap().CameraModelId.PINHOLE
    placed = {camera.photo: camera for camera in cameras}
    numbers = {}
    for image in reconstruction.images.values():
        camera = placed[photo_index(image.name)]
        fx, fy, cx, cy = numbers[image.camera_id] = pinhole(camera)
        moved = reconstruction.cameras[image.camera_id].cam_from_img(image.points2D) * [fx, fy] + [cx, cy]
        for point, xy in zip(image.points2D, moved, strict=True):
            # Far out a strong lens may have no inverse; nothing was triangulated there.
            point.xy = xy if np.isfinite(xy).all() else point.xy
        image.name = names[camera.photo]
    for camera_id, own in numbers.items():
        reconstruction.cameras[camera_id].model = pinhole_model
        reconstruction.cameras[camera_id].params = own
    reconstruction.update_point_3d_errors()


def pinhole(camera: PlacedCamera) -> tuple[float, float, float, float]:
    """fx, fy, cx, cy of the straightened photo, in pixels."""
    zoom = zoom_to_fill(camera.distortion, camera.intrinsics, camera.size)
    fx, fy, cx, cy = camera.intrinsics
    return fx * zoom, fy * zoom, cx, cy


def _pinhole_numbers(camera: PlacedCamera) -> dict[str, float]:
    fx, fy, cx, cy = pinhole(camera)
    return {"fl_x": fx, "fl_y": fy, "cx": cx, "cy": cy, "w": camera.size[1], "h": camera.size[0]}
