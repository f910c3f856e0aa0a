"""Sparse models of COLMAP, text or binary: cameras and world-to-camera poses with OpenCV axes, photos in images/.

Photos are known by their name below images/; numbers are keys, and 3D points, rigs and frames are not needed. Where
only images_2, images_4 or images_8 hold a photo, it is taken from there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from data.errors import UserError
from data.files import DOWNSCALED, PHOTO_SUFFIXES, Found, PhotoFinder, natural_key
from data.frames import BadFrame, Capture, Listing
from data.parsers import colmap_binary, colmap_text
from data.parsers.colmap_models import READ, Camera, Photo, camera_to_world, read_numbers

NAME = "COLMAP"

PLACES = ("sparse", "colmap/sparse", "dense/sparse", "dense/0/sparse", "colmap", "")
MAX_UNPOSED = 100_000


def matches(path: Path) -> bool:
    """Whether a model lies in one of the usual places."""
    return path.is_dir() and bool(_model_folders(path))


def parse(path: Path) -> Capture:
    """List the photos of the largest model; photos in the folder that have no pose are listed as such."""
    folders = _model_folders(path)
    models, warnings = _read_all(folders)
    model = max(models, key=lambda m: len(m.photos))
    _refuse_lenses(model)
    photos = _PhotoFolders(_capture_root(path, model.folder))
    listings = [_list_photo(photo, model, photos) for photo in model.photos]
    listings += photos.list_unposed(listings)
    notes = _note_models(path, models, model) + _note_folders(listings)
    return Capture(listings, notes, warnings)


@dataclass(frozen=True)
class _Model:
    folder: Path
    cameras: dict[int, Camera]
    photos: list[Photo]


class _PhotoFolders:
    """images/ and its downscaled copies below a folder, or that folder itself where there are none."""

    def __init__(self, root: Path) -> None:
        folders = [(root / "images", 1)] + [(root / f"images_{n}", n) for n in DOWNSCALED]
        self.folders = [(folder, n) for folder, n in folders if folder.is_dir()] or [(root, 1)]
        self.root = root
        self._finders = [(PhotoFinder(folder), n) for folder, n in self.folders]

    def find(self, name: str) -> Found | None:
        for finder, factor in self._finders:
            if found := finder.find(name):
                return Found(found.path, factor)
        # Models made with the capture itself as image folder name their photos images/a.jpg.
        if PurePosixPath(name).parts[:1] == ("images",):
            return self.find(name.partition("/")[2])
        return None

    def list_unposed(self, listings: list[Listing]) -> list[Listing]:
        """Photos in the first folder that the model does not have."""
        folder, _ = self.folders[0]
        if folder == self.root:
            return []
        posed = {listing.file for listing in listings}
        names = {os.path.splitext(listing.name)[0] for listing in listings}
        unposed: list[Listing] = []
        for place, _, files in os.walk(folder):
            for file in (Path(place, name) for name in files if not name.startswith(".")):
                name = file.relative_to(folder).as_posix()
                known = file in posed or os.path.splitext(name)[0] in names
                if file.suffix.lower() in PHOTO_SUFFIXES and not known and len(unposed) < MAX_UNPOSED:
                    unposed.append(Listing(name, None, problem="no pose"))
        return unposed


def _model_folders(path: Path) -> list[Path]:
    """Folders with a model, in the order of preference among equals."""
    found = []
    for place in PLACES:
        folder = path / place
        inside = [f for f in _subfolders(folder) if f.name.isdecimal()] if folder.name == "sparse" else []
        found += [f for f in [*sorted(inside, key=lambda f: natural_key(f.name)), folder] if _reader(f)]
    return list(dict.fromkeys(found))


def _subfolders(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir()]
    except OSError:
        return []


def _reader(folder: Path) -> str | None:
    """ "bin" or "txt", whichever both files are there in."""
    for suffix in ("bin", "txt"):
        if all((folder / f"{name}.{suffix}").is_file() for name in ("cameras", "images")):
            return suffix
    return None


def _read_all(folders: list[Path]) -> tuple[list[_Model], list[str]]:
    """All models that can be read, and what is wrong with the others; raises UserError if none can."""
    models, errors = [], []
    for folder in folders:
        suffix = _reader(folder)
        reader = colmap_binary if suffix == "bin" else colmap_text
        try:
            cameras = reader.read_cameras(folder / f"cameras.{suffix}")
            models.append(_Model(folder, cameras, reader.read_photos(folder / f"images.{suffix}")))
        except UserError as error:
            errors.append(error)
    if not models:
        raise errors[0]
    return models, [f"a model is left out: {error}" for error in errors]


def _refuse_lenses(model: _Model) -> None:
    """Say it once, and with the way out, if no photo of the model can be used for its lens."""
    used = {model.cameras[p.camera].model for p in model.photos if p.camera in model.cameras}
    if used and not used & set(READ):
        raise UserError(
            f"{model.folder} has the lens model {', '.join(sorted(used))}, which is not read. Undistort the photos "
            "(colmap image_undistorter --image_path images --input_path sparse/0 --output_path out) and give that."
        )


def _capture_root(path: Path, model: Path) -> Path:
    """The nearest folder at or above the model that has photos, not above the capture."""
    if path == model:  # the capture lies up to three folders higher (colmap/sparse/0)
        above = [path, *path.absolute().parents[:3]]
    else:
        above = [model, *model.parents]
        above = above[: above.index(path) + 1]
    for folder in above:
        if any((folder / name).is_dir() for name in ("images", *(f"images_{n}" for n in DOWNSCALED))):
            return folder
    return path


def _list_photo(photo: Photo, model: _Model, photos: _PhotoFolders) -> Listing:
    name = PurePosixPath(photo.name.replace("\\", "/")).as_posix()
    try:
        if photo.problem:
            raise BadFrame(photo.problem)
        if photo.camera not in model.cameras:
            raise BadFrame(f"its camera {photo.camera} is not in the model")
        numbers = read_numbers(model.cameras[photo.camera])
    except BadFrame as problem:
        return Listing(name, None, problem=str(problem))
    found = photos.find(photo.name)
    return Listing(
        name, found.path if found else None, camera_to_world(photo), numbers, downscale=found.downscale if found else 1
    )


def _note_models(path: Path, models: list[_Model], taken: _Model) -> list[str]:
    if len(models) == 1:
        return []
    sizes = ", ".join(f"{_relative(m.folder, path)} with {len(m.photos)}" for m in models if m is not taken)
    return [
        f"the largest of {len(models)} models is taken, {_relative(taken.folder, path)} with {len(taken.photos)} "
        f"photos (besides: {sizes})"
    ]


def _note_folders(listings: list[Listing]) -> list[str]:
    counts = {n: sum(listing.downscale == n and listing.file is not None for listing in listings) for n in DOWNSCALED}
    return [
        f"{count} photos are taken from images_{n}, because images does not hold them"
        for n, count in counts.items()
        if count
    ]


def _relative(folder: Path, root: Path) -> str:
    return folder.relative_to(root).as_posix()
