"""Structure from motion: from photos to the cameras that took them and the points that they share.

COLMAP often calls two photos out of thirty a success. So the registered share is looked at, and with too few the
placing is tried again: with the global mapper, which finds all directions at once and so does not depend on a good
first pair; with settings that ask for less; and with finer features.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64

from data.distortion import Distortion, zoom_to_fill
from data.photos import features
from data.photos.collect import MIN_PHOTOS, Photo, Step
from data.photos.features import require_pycolmap
from data.photos.pairs import Matching, choose_pairs, resolve

GOOD_SHARE = 0.9
"""The share of photos with which a reconstruction is taken without looking for a better one."""

MAX_MODELS = 10

MAPPERS: dict[str, dict[str, float]] = {
    "strict": {},
    "relaxed": {
        "init_min_num_inliers": 50,
        "init_min_tri_angle": 4.0,
        "init_max_forward_motion": 1.0,
        "abs_pose_min_num_inliers": 20,
        "filter_min_tri_angle": 1.0,
    },
    "loose": {
        "init_min_num_inliers": 30,
        "init_min_tri_angle": 2.0,
        "init_max_forward_motion": 1.0,
        "abs_pose_min_num_inliers": 15,
        "abs_pose_min_inlier_ratio": 0.15,
        "filter_min_tri_angle": 0.7,
    },
}
"""Settings of the incremental mapper other than COLMAP's own: fewer inliers, less parallax, motion along the view."""

MAX_FOCAL_CHANGE = 0.25
"""A focal length that is farther from what EXIF tells, as a part of it, is mentioned."""

Mapper = Literal["strict", "global", "relaxed", "loose"]


@dataclass(frozen=True)
class Effort:
    """One way to try."""

    sensitivity: Literal["normal", "fine"]
    """Which features are matched."""
    mapper: Mapper

    @property
    def name(self) -> str:
        """For example "normal-global"."""
        return f"{self.sensitivity}-{self.mapper}"


NORMAL_EFFORTS = (
    Effort("normal", "strict"),
    Effort("normal", "global"),
    Effort("normal", "relaxed"),
    Effort("fine", "global"),
    Effort("fine", "relaxed"),
    Effort("fine", "loose"),
)
FINE_EFFORTS = (
    Effort("fine", "strict"),
    Effort("fine", "global"),
    Effort("fine", "relaxed"),
    Effort("fine", "loose"),
)
"""What is tried, in this order; the second is for photos with few features."""


@dataclass(frozen=True)
class Model:
    """A reconstruction on disk and its main numbers."""

    path: Path
    """A folder with COLMAP's binary files."""
    database: Path
    """Where its features and matches are."""
    effort: str
    registered: tuple[int, ...]
    """Indices of the photos that have a camera."""
    points: int
    error: float
    """Mean reprojection error in pixels of the pictures."""
    sound: bool
    """Whether the lens can be straightened; a nonsensical lens means that the rest is wrong, too."""
    focal_differs: bool
    """Whether a focal length is far from what EXIF tells."""

    def is_good(self, count: int) -> bool:
        """Whether nothing better is to be hoped for with `count` photos."""
        return self.sound and len(self.registered) >= GOOD_SHARE * count


@dataclass(frozen=True, eq=False)
class PlacedCamera:
    """Where a photo was taken from, and the lens: all numbers copied, nothing refers to pycolmap's memory."""

    photo: int
    c2w: Float64[np.ndarray, "4 4"]
    intrinsics: tuple[float, float, float, float]
    distortion: Distortion
    size: tuple[int, int]


def reconstruct(
    work: Path, photos: Sequence[Photo], max_size: int, matching: Matching, in_order: bool, on_step: Step
) -> tuple[Model | None, Path]:
    """The best model of the photos whose pictures are in `work`/pictures, or None; and the database it came from.

    Whatever is finished in `work` is taken up and not done again.
    """
    database = work / "normal.db"
    features.extract(database, work / "pictures", photos, max_size, fine=False, on_step=on_step)
    few = features.are_few(features.feature_counts(database))
    found: list[Model] = []
    for effort in FINE_EFFORTS if few else NORMAL_EFFORTS:
        database = work / f"{effort.sensitivity}.db"
        features.extract(database, work / "pictures", photos, max_size, effort.sensitivity == "fine", on_step)
        way = resolve(matching, len(photos), in_order)
        pairs = choose_pairs(way, len(photos), features.read_descriptors(database))
        features.match(database, pairs, on_step)
        found += place(database, work, effort, photos, on_step)
        if any(model.is_good(len(photos)) for model in found):
            break
    # The first model is not always the largest.
    best = max(found, key=lambda model: (model.sound, len(model.registered), -model.error), default=None)
    return best, best.database if best else database


def place(database: Path, work: Path, effort: Effort, photos: Sequence[Photo], on_step: Step) -> list[Model]:
    """Run one of COLMAP's mappers; returns all models that it finds."""
    folder = work / "models" / effort.name
    if not (folder / "models.json").exists():
        partial = folder.with_name(f"{effort.name}.part")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        models = _map(database, work / "pictures", partial, effort.mapper, photos, on_step)
        (partial / "models.json").write_text(json.dumps(models))
        partial.rename(folder)
    listed = json.loads((folder / "models.json").read_text())
    return [
        Model(
            path=folder / numbers["name"],
            database=database,
            effort=effort.name,
            registered=tuple(numbers["registered"]),
            points=numbers["points"],
            error=numbers["error"],
            sound=numbers["sound"],
            focal_differs=numbers["focal_differs"],
        )
        for numbers in listed
    ]


def read_cameras(reconstruction: Any) -> list[PlacedCamera]:
    """The registered cameras of a pycolmap reconstruction, in the order of their photos."""
    cameras = []
    for image in reconstruction.images.values():
        if not image.has_pose:
            continue
        # `image.camera` is not used: its memory goes with the reconstruction.
        camera = reconstruction.cameras[image.camera_id]
        focal, cx, cy, bend = (float(x) for x in camera.params)
        w2c = np.eye(4)
        w2c[:3] = image.cam_from_world().matrix()
        cameras.append(
            PlacedCamera(
                features.photo_index(image.name),
                np.linalg.inv(w2c),
                (focal, focal, cx, cy),
                Distortion("opencv", (bend, 0.0, 0.0, 0.0)),
                (camera.height, camera.width),
            )
        )
    return sorted(cameras, key=lambda camera: camera.photo)


def _map(
    database: Path, pictures: Path, folder: Path, mapper: Mapper, photos: Sequence[Photo], on_step: Step
) -> list[dict[str, Any]]:
    """Let COLMAP write its models as `folder`/0, 1, ...; returns the fields of each."""
    on_step("placing photos", 0, len(photos))
    if mapper == "global":
        found = _map_at_once(database, pictures, folder)
    else:
        found = _map_one_by_one(database, pictures, folder, MAPPERS[mapper], len(photos), on_step)
    return [{"name": str(number), **_describe(model, photos)} for number, model in found.items()]


def _map_at_once(database: Path, pictures: Path, folder: Path) -> dict[int, Any]:
    """Directions of all cameras first, then all positions (GLOMAP: Pan et al., ECCV 2024)."""
    pycolmap = require_pycolmap()
    options = pycolmap.GlobalPipelineOptions()
    options.min_model_size = MIN_PHOTOS
    mapper = options.mapper
    for part in (options, mapper, mapper.rotation_averaging, mapper.global_positioning, mapper.retriangulation):
        part.random_seed = 0
    return pycolmap.global_mapping(database, pictures, folder, options)


def _map_one_by_one(
    database: Path, pictures: Path, folder: Path, settings: dict[str, float], count: int, on_step: Step
) -> dict[int, Any]:
    """A first pair, then photo after photo."""
    pycolmap = require_pycolmap()
    options = pycolmap.IncrementalPipelineOptions()
    options.min_model_size = MIN_PHOTOS
    options.max_num_models = MAX_MODELS
    for part in (options, options.mapper, options.triangulation):
        part.random_seed = 0
    for name, value in settings.items():
        setattr(options.mapper, name, value)
    placed = 0

    def begin() -> None:
        nonlocal placed
        placed = 2
        on_step("placing photos", min(placed, count), count)

    def add() -> None:
        nonlocal placed
        placed += 1
        on_step("placing photos", min(placed, count), count)

    return pycolmap.incremental_mapping(
        database, pictures, folder, options, initial_image_pair_callback=begin, next_image_callback=add
    )


def _describe(model: Any, photos: Sequence[Photo]) -> dict[str, Any]:
    """The numbers of a pycolmap reconstruction, copied while it lives."""
    cameras = read_cameras(model)
    return {
        "registered": [camera.photo for camera in cameras],
        "points": model.num_points3D(),
        "error": float(model.compute_mean_reprojection_error()),
        "sound": all(_is_sound(camera) for camera in cameras),
        "focal_differs": any(_differs(camera, photos[camera.photo]) for camera in cameras),
    }


def _is_sound(camera: PlacedCamera) -> bool:
    try:
        zoom_to_fill(camera.distortion, camera.intrinsics, camera.size)
    except ValueError:
        return False
    return True


def _differs(camera: PlacedCamera, photo: Photo) -> bool:
    told = (photo.focal or 0) * max(camera.size)
    return bool(told) and abs(camera.intrinsics[0] / told - 1) > MAX_FOCAL_CHANGE
