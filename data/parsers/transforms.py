"""transforms.json of nerfstudio and instant-ngp: camera-to-world with OpenGL axes, numbers per frame or per file.

Where the dialects differ, a key in the frame beats the key at the top of the file, and what neither states comes from
the photo. `applied_transform` has been applied already and is not applied again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from data.distortion import PINHOLE, Distortion
from data.files import PHOTO_SUFFIXES, PhotoFinder
from data.frames import BadFrame, Capture, Listing, Numbers
from data.parsers.listing import list_frames, shorten_names
from data.parsers.values import image_size, matrix, number, opengl_to_opencv, read_object

NAME = "nerfstudio / instant-ngp"

OWN_NUMBERS = ("fl_x", "fl_y", "camera_angle_x", "camera_angle_y", "cx", "cy")
POLYNOMIAL = ("", "OPENCV", "PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "FULL_OPENCV", "PERSPECTIVE")
FISHEYE = ("OPENCV_FISHEYE", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE")
# Keys about instant-ngp's box and sampling, which mean nothing to other readers.
IGNORED = ("aabb_scale", "aabb", "scale", "offset", "render_aabb", "n_extra_learnable_dims", "up", "from_na")


def matches(path: Path) -> bool:
    """Whether this is a transforms file or a folder with one."""
    if path.is_dir():
        return (path / "transforms.json").is_file()
    return path.suffix == ".json" and path.name.startswith("transforms")


def parse(path: Path) -> Capture:
    """List the frames of the file; `train_filenames` and the like are kept as the split."""
    file = path / "transforms.json" if path.is_dir() else path
    content = read_object(file)
    splits = _splits(content)

    def split(name: str) -> str | None:
        return next((splits[key] for key in _spellings(name) if key in splits), None)

    listings = list_transforms(content, PhotoFinder(file.parent), split)
    unknown = set(splits).difference(*(_spellings(listing.name) for listing in listings))
    return Capture(shorten_names(listings), notes_on(listings, content), _warn_of_names(sorted(unknown)))


def list_transforms(
    content: Mapping[str, Any], finder: PhotoFinder, split: Callable[[str], str | None]
) -> list[Listing]:
    """The frames of a transforms file; `split` tells "train", "val" or "test" from the path in the file."""

    def read(frame: Mapping[str, Any]) -> tuple[np.ndarray, Numbers]:
        return opengl_to_opencv(matrix(frame, "transform_matrix")), read_numbers(frame, content)

    return list_frames(content["frames"], finder, "file_path", read, split)


def read_numbers(frame: Mapping[str, Any], top: Mapping[str, Any]) -> Numbers:
    """Camera numbers of a frame, key by key: frame, then top of the file."""
    both = [frame, top]
    fx, angle_x = number([frame], "fl_x"), number([frame], "camera_angle_x")
    fy, angle_y = number([frame], "fl_y"), number([frame], "camera_angle_y")
    if angle_x is None or fx is not None:
        # The file's focal length does not stand beside the frame's own field of view: pixels would be taken as square.
        fx = number(both, "fl_x")
        fy = number(both, "fl_y") if angle_y is None else fy
        angle_x, angle_y = number(both, "camera_angle_x"), number(both, "camera_angle_y")
    if fx is None and fy is None and angle_x is None and angle_y is None:
        raise BadFrame("no focal length (fl_x) and no field of view (camera_angle_x)")
    size = image_size(frame)
    has_own = any(frame.get(key) is not None for key in OWN_NUMBERS)
    return Numbers(
        fx,
        fy,
        number(both, "cx"),
        number(both, "cy"),
        angle_x,
        angle_y,
        declared=size or image_size({**top, **{k: frame[k] for k in ("h", "w") if frame.get(k) is not None}}),
        declared_for_all=size is None and has_own,
        distortion=read_distortion(frame, top),
    )


def read_distortion(frame: Mapping[str, Any], top: Mapping[str, Any]) -> Distortion:
    """The lens model by name and its numbers; a model that is not read raises BadFrame with its name."""
    both = [frame, top]
    name = frame.get("camera_model", top.get("camera_model")) or ""
    model = str(name).upper()
    if any(key in source for source in both for key in ("ftheta_p0", "latlong", "equirectangular")):
        raise BadFrame("lens model f-theta or equirectangular is not read")
    k = [number(both, f"k{i}") or 0.0 for i in range(1, 7)]
    if model in FISHEYE or any(source.get("is_fisheye") is True for source in both):
        return Distortion("fisheye", tuple(k[:4]))
    if model not in POLYNOMIAL:
        raise BadFrame(f"lens model {name} is not read (undistort the photos first)")
    p1, p2 = (number(both, key) or 0.0 for key in ("p1", "p2"))
    parameters = (k[0], k[1], p1, p2, k[2], k[3], k[4], k[5])
    return Distortion("opencv", parameters) if any(parameters) else PINHOLE


def notes_on(listings: list[Listing], content: Mapping[str, Any]) -> list[str]:
    """What was chosen or left aside while reading, one line each."""
    notes = []
    factors = sorted({listing.downscale for listing in listings} - {1})
    for factor in factors:
        count = sum(listing.downscale == factor for listing in listings)
        notes.append(f"{count} photos are taken from images_{factor}, because images does not hold them")
    ignored = [key for key in IGNORED if key in content]
    if ignored:
        notes.append(f"keys for instant-ngp only, ignored: {', '.join(ignored)}")
    if "applied_transform" in content:
        notes.append("applied_transform is already part of the matrices and is not applied again")
    return notes


def _splits(content: Mapping[str, Any]) -> dict[str, str]:
    splits = {}
    for split in ("train", "val", "test"):
        names = content.get(f"{split}_filenames")
        if isinstance(names, list):
            splits.update({_spellings(name)[0]: split for name in names if isinstance(name, str)})
    return splits


def _spellings(name: str) -> list[str]:
    """The ways in which a list may name the photo of a frame: plain, and with or without the suffix of a photo."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.suffix.lower() in PHOTO_SUFFIXES:
        return [str(path), str(path.with_suffix(""))]
    return [str(path), *(f"{path}{suffix}" for suffix in PHOTO_SUFFIXES)]


def _warn_of_names(names: list[str]) -> list[str]:
    if not names:
        return []
    count = f"{len(names)} names" if len(names) > 1 else "a name"
    return [f"train_filenames and the like hold {count} of no frame, the first {names[0]}"]
