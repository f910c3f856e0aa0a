"""From photos or a video to a scene folder that appears when it is complete; what is interrupted can go on."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from PIL import Image

from data.background import composite
from data.errors import UserError
from data.files import read_json
from data.images import PhotoError
from data.made_scenes import may_replace
from data.photos.collect import (
    MIN_PHOTOS,
    Photo,
    Step,
    check_enough,
    group_cameras,
    list_photos,
    load_scaled,
    read_photos,
)
from data.photos.export import export
from data.photos.features import feature_counts, picture_name, read_pairs, require_pycolmap
from data.photos.pairs import Matching
from data.photos.reconstruct import reconstruct
from data.photos.report import MORE_PARALLAX, ONE_PLACE, Report, advise, explain_failure, explain_missing, is_enough
from data.photos.turning import only_turned
from data.photos.video import extract_frames, is_video
from data.writers import check_replaceable

WHITE = (1.0, 1.0, 1.0)
OURS = ("images", "sparse", "transforms.json", "report.json")
"""What a scene made of photos consists of."""


@dataclass(frozen=True)
class PhotoSceneConfig:
    """How photos become a scene."""

    max_size: int = 1024
    """Longest side of the pictures in pixels; smaller photos keep their size."""
    frames: int = 50
    """How many frames to take of a video."""
    matching: Matching = "auto"
    """Which photos to match: all pairs, neighbours in order, or what suits their number."""

    def __post_init__(self) -> None:
        if not 128 <= self.max_size <= 8192:
            raise UserError(f"--max-size is {self.max_size}; give a number of pixels from 128 to 8192.")
        if not MIN_PHOTOS <= self.frames <= 2000:
            raise UserError(f"--frames is {self.frames}; give a number from {MIN_PHOTOS} to 2000.")
        if self.matching not in get_args(Matching):
            raise UserError(f"There is no matching {self.matching}; choose one of {', '.join(get_args(Matching))}.")


def write_photo_scene(
    inputs: Sequence[Path],
    folder: Path,
    config: PhotoSceneConfig,
    overwrite: bool = False,
    on_step: Step = lambda *_: None,
) -> Report:
    """Find the cameras of photos, or of frames of one video, and write them as the scene `folder`.

    A scene that was made of the same photos in the same way is kept, and its report returned. Work goes on in a hidden
    folder beside the scene, where an interrupted run is taken up if photos and options are still the same.
    """
    require_pycolmap()
    folder = check_replaceable(folder)
    start = time.monotonic()
    listed = _list_inputs(inputs)
    recipe = _recipe(listed, config)
    if folder.exists() and not may_replace(folder, recipe, overwrite, OURS):
        return Report.from_json(read_json(folder / "report.json"))
    partial = folder.with_name(f".{folder.name}.part")
    _take_up(partial, recipe)
    try:
        made = _make(listed, partial, config, recipe, on_step, start)
    except UserError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _put_in_place(partial, folder)
    return made


def _make(
    listed: Sequence[tuple[str, Path]],
    partial: Path,
    config: PhotoSceneConfig,
    recipe: dict[str, Any],
    on_step: Step,
    start: float,
) -> Report:
    """All the work, up to the finished scene in `partial`/scene."""
    work = partial / "work"
    in_order = len(listed) == 1 and is_video(listed[0][1])
    if in_order:
        if not (work / "frames").exists():
            extract_frames(listed[0][1], work / "frames", config.frames, config.max_size, on_step)
        listed = list_photos([work / "frames"])
    photos, unreadable = read_photos(listed, on_step)
    photos, damaged = _write_pictures(photos, work, config.max_size, on_step)
    check_enough(photos, unreadable + damaged)
    model, database = reconstruct(work, photos, config.max_size, config.matching, in_order, on_step)
    counts, pairs = feature_counts(database), read_pairs(database)
    if only_turned(pairs, [photo.scaled(config.max_size) for photo in photos]):
        raise UserError(f"{ONE_PLACE} Take photos again: {MORE_PARALLAX}.")
    if model is None or not is_enough(model, len(photos)):
        raise UserError(explain_failure(model, len(photos), counts, pairs))
    scene = partial / "scene"
    shutil.rmtree(scene, ignore_errors=True)
    scene.mkdir()
    export(model.path, photos, scene, recipe, on_step)
    missing = explain_missing(photos, model, counts, pairs)
    report = Report(
        photos=len(photos),
        registered=len(model.registered),
        not_registered=missing,
        unreadable=tuple(unreadable + damaged),
        turned=sum(photo.turned for photo in photos),
        points=model.points,
        reprojection_error=model.error,
        cameras=len(group_cameras(photos)),
        effort=model.effort,
        focal_differs=model.focal_differs,
        advice="" if model.is_good(len(photos)) else advise(len(photos), counts, pairs),
        minutes=(time.monotonic() - start) / 60,
    )
    (scene / "report.json").write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    return report


def _list_inputs(inputs: Sequence[Path]) -> list[tuple[str, Path]]:
    """(name, path) of the photos, or of the one video."""
    films = [path for path in inputs if is_video(path)]
    if films and len(inputs) > 1:
        raise UserError(f"{films[0]} is a video among other inputs. Give one video alone, or photos without it.")
    return [(films[0].name, films[0])] if films else list_photos(inputs)


def _write_pictures(
    photos: Sequence[Photo], work: Path, max_size: int, on_step: Step
) -> tuple[list[Photo], list[tuple[str, str]]]:
    """Scale the photos into `work`/pictures for COLMAP; returns the intact ones, and (name, why) of damaged ones."""
    listing = work / "damaged.json"
    if not (work / "pictures").exists():
        partial = work / "pictures.part"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        problems: dict[str, str] = {}
        for done, photo in enumerate(photos):
            on_step("reading photos", done, len(photos))
            try:
                pixels, _ = composite(load_scaled(photo.path, photo.scaled(max_size)), WHITE)
            except PhotoError as problem:
                problems[photo.name] = problem.reason
                continue
            picture = Image.fromarray((pixels * 255).round().to(torch.uint8).permute(1, 2, 0).numpy())
            picture.save(partial / picture_name(done - len(problems)), quality=95, subsampling=0)
        on_step("reading photos", len(photos), len(photos))
        listing.write_text(json.dumps(problems), encoding="utf-8")
        partial.rename(work / "pictures")
    damaged = read_json(listing)
    intact = [photo for photo in photos if photo.name not in damaged]
    return intact, [(photo.path.name, damaged[photo.name]) for photo in photos if photo.name in damaged]


def _recipe(listed: Sequence[tuple[str, Path]], config: PhotoSceneConfig) -> dict[str, Any]:
    """All that decides how the scene comes out, as JSON gives it back."""
    digest = hashlib.sha256()
    for name, path in listed:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
        with suppress(OSError), path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return {"photos": len(listed), "photos_sha256": digest.hexdigest(), **asdict(config)}


def _take_up(partial: Path, recipe: dict[str, Any]) -> None:
    """Keep the work folder of an interrupted run with the same recipe; otherwise begin a new one."""
    known = partial / "work" / "recipe.json"
    try:
        if known.exists() and json.loads(known.read_text(encoding="utf-8")) == recipe:
            return
    except ValueError:
        pass
    shutil.rmtree(partial, ignore_errors=True)
    try:
        known.parent.mkdir(parents=True)
        known.write_text(json.dumps(recipe), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{partial.parent} cannot be written to ({error.strerror}). Choose another place.") from error


def _put_in_place(partial: Path, folder: Path) -> None:
    """Give the finished scene its name, and remove the work."""
    if folder.exists():
        folder.rename(partial / "replaced")
    (partial / "scene").rename(folder)
    shutil.rmtree(partial, ignore_errors=True)
