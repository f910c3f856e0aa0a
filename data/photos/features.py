"""Features of photos and matches between them, kept in a COLMAP database that can be added to bit by bit.

Pictures are called 00000.jpg, 00001.jpg, ... after the index of their photo, because COLMAP's lists of pairs cannot
hold names with spaces. What the database has already is not computed again, so that an interrupted run goes on.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Float64, UInt8

from data.errors import UserError
from data.photos.collect import Photo, Step, group_cameras

SENSITIVITY = {"normal": 0.0067, "fine": 0.002}
"""Least contrast of a SIFT feature; the first is COLMAP's own default, the second finds features on plain surfaces."""

FEW_FEATURES = 2500
"""With fewer per photo, matching is quick and every feature counts."""

DEFAULT_FOCAL = 1.2
"""Assumed focal length, divided by the longer side, where EXIF tells none: COLMAP's own default."""

PAIRS_AT_A_TIME = 8
FLAT = ("PLANAR", "PANORAMIC", "PLANAR_OR_PANORAMIC")


@dataclass(frozen=True, eq=False)
class Pair:
    """Two photos, by index, that were found to show the same things."""

    first: int
    second: int
    homography: Float64[np.ndarray, "3 3"] | None = None
    """Takes pixels of the first photo to the second, if that explains the matches: what is seen is flat, or the camera
    turned on the spot."""


def require_pycolmap() -> ModuleType:
    """The package pycolmap, without its log; if it is absent, an error says how to install it."""
    try:
        pycolmap = importlib.import_module("pycolmap")
    except ImportError as error:
        raise UserError(
            'Photos without cameras need the package pycolmap. Install it with: pip install "nvs[sfm]" '
            "(or pip install pycolmap)."
        ) from error
    pycolmap.logging.minloglevel = pycolmap.logging.FATAL.value
    return pycolmap


def extract(database: Path, pictures: Path, photos: Sequence[Photo], max_size: int, fine: bool, on_step: Step) -> None:
    """Find SIFT features in all pictures; photos of the same camera and lens share one SIMPLE_RADIAL camera."""
    pycolmap = require_pycolmap()
    options = pycolmap.FeatureExtractionOptions()
    options.sift.peak_threshold = SENSITIVITY["fine" if fine else "normal"]
    done = set(feature_counts(database))
    at_a_time = 2 * (os.cpu_count() or 1)
    for camera_id, group in enumerate(group_cameras(photos), start=1):
        _write_camera(database, camera_id, [photos[i] for i in group], max_size)
        reader = pycolmap.ImageReaderOptions()
        reader.existing_camera_id = camera_id
        missing = [i for i in group if i not in done]
        for start in range(0, len(missing), at_a_time):
            on_step("finding features", len(done), len(photos))
            part = missing[start : start + at_a_time]
            pycolmap.extract_features(
                database,
                pictures,
                image_names=[picture_name(i) for i in part],
                camera_mode=pycolmap.CameraMode.SINGLE,
                reader_options=reader,
                extraction_options=options,
            )
            done |= set(part)
    on_step("finding features", len(photos), len(photos))


def match(database: Path, pairs: Sequence[tuple[int, int]], on_step: Step) -> None:
    """Match the features of pairs of photos, and keep the matches that agree with some motion of the camera."""
    pycolmap = require_pycolmap()
    with open_database(database) as db:
        ids = _image_ids(db)
        missing = [(a, b) for a, b in pairs if not db.exists_matches(ids[a], ids[b])]
    options = pycolmap.ImportedPairingOptions()
    options.match_list_path = database.with_suffix(".pairs.txt")
    geometry = pycolmap.TwoViewGeometryOptions()
    geometry.ransac.random_seed = 0
    for start in range(0, len(missing), PAIRS_AT_A_TIME):
        on_step("matching photos", len(pairs) - len(missing) + start, len(pairs))
        part = missing[start : start + PAIRS_AT_A_TIME]
        lines = [f"{picture_name(a)} {picture_name(b)}\n" for a, b in part]
        options.match_list_path.write_text("".join(lines))
        pycolmap.match_image_pairs(database, pairing_options=options, verification_options=geometry)
    on_step("matching photos", len(pairs), len(pairs))


def feature_counts(database: Path) -> dict[int, int]:
    """Number of features per photo index, for the photos that have been looked at."""
    if not database.exists():
        return {}
    with open_database(database) as db:
        return {
            index: db.num_keypoints_for_image(image_id)
            for index, image_id in _image_ids(db).items()
            if db.exists_keypoints(image_id)
        }


def are_few(counts: dict[int, int]) -> bool:
    """Whether the photos have so few features that finer ones are worth their time."""
    return median(counts.values()) < FEW_FEATURES


def read_descriptors(database: Path) -> Iterator[UInt8[np.ndarray, "n 128"]]:
    """The SIFT descriptors of each photo, in order of their index."""
    with open_database(database) as db:
        for _, image_id in sorted(_image_ids(db).items()):
            yield np.array(db.read_descriptors(image_id).data, dtype=np.uint8).reshape(-1, 128)


def read_pairs(database: Path) -> list[Pair]:
    """All pairs of photos whose matches agree with some motion of the camera."""
    pycolmap = require_pycolmap()
    with open_database(database) as db:
        index = {image_id: index for index, image_id in _image_ids(db).items()}
        pairs = []
        for pair_id, geometry in zip(*db.read_two_view_geometries(), strict=True):
            first, second = pycolmap.pair_id_to_image_pair(pair_id)
            if not len(geometry.inlier_matches):
                continue
            flat = pycolmap.TwoViewGeometryConfiguration(geometry.config).name in FLAT
            homography = np.array(geometry.H, dtype=np.float64) if flat and geometry.H is not None else None
            pairs.append(Pair(index[first], index[second], homography))
    return pairs


def picture_name(index: int) -> str:
    """What the picture of a photo is called inside the database."""
    return f"{index:05d}.jpg"


def photo_index(picture: str) -> int:
    """The index of the photo that a picture shows."""
    return int(Path(picture).stem)


@contextmanager
def open_database(path: Path) -> Iterator[Any]:
    """A COLMAP database, made if it is not there, and closed at the end."""
    db = require_pycolmap().Database.open(path)
    try:
        yield db
    finally:
        db.close()


def _image_ids(db: Any) -> dict[int, int]:
    return {photo_index(image.name): image.image_id for image in db.read_all_images()}


def _write_camera(database: Path, camera_id: int, photos: Sequence[Photo], max_size: int) -> None:
    """Add the camera of a group of photos, which all have the same size, unless it is there."""
    pycolmap = require_pycolmap()
    h, w = photos[0].scaled(max_size)
    told = [photo.focal for photo in photos if photo.focal]
    focal = (median(told) if told else DEFAULT_FOCAL) * max(h, w)
    camera = pycolmap.Camera.create_from_model_name(camera_id, "SIMPLE_RADIAL", focal, w, h)
    camera.has_prior_focal_length = bool(told)
    with open_database(database) as db:
        if not db.exists_camera(camera_id):
            db.write_camera(camera, use_camera_id=True)
