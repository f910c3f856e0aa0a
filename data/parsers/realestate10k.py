"""Clips of RealEstate10K (also ACID): NAME.txt with a row per frame, and the frames named by their time stamps.

A row holds the time stamp, fx fy cx cy as parts of the photo's width and height, two unused numbers, and a 3x4
world-to-camera matrix with OpenCV axes. The first line is the address of the video.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from data.errors import UserError
from data.files import PHOTO_SUFFIXES
from data.frames import BadFrame, Capture, Listing, Numbers
from data.parsers.values import camera_to_world

NAME = "RealEstate10K"

NUMBERS_PER_ROW = 19
MAX_BYTES = 64 * 2**20
MAX_LOOKED_AT = 500


def matches(path: Path) -> bool:
    """Whether this is a clip's file or a folder with such files."""
    return bool(scenes(path))


def scenes(path: Path) -> list[Path]:
    """The files of all clips that a folder or its subfolders hold, or the file itself."""
    if path.is_file():
        return [path] if _is_clip(path) else []
    found: list[Path] = []
    for folder in [path, *_subfolders(path)] if path.is_dir() else []:
        files = sorted(folder.glob("*.txt"))
        # A folder of thousands is told by its first file.
        if files and _is_clip(files[0]):
            found += files
        elif len(files) < MAX_LOOKED_AT:
            found += [file for file in files if _is_clip(file)]
    return found


def parse(path: Path) -> Capture:
    """List the frames of one clip; rows are matched to photos by the time stamp."""
    file = scenes(path)[0]
    photos = _photos_by_stamp(file)
    if not photos:
        raise UserError(
            f"{file} has cameras but there is no folder {file.stem} with photos beside it: RealEstate10K comes without "
            f"them. Take the frames from the video and name them by their time stamps, {file.stem}/STAMP.png."
        )
    if file.stat().st_size > MAX_BYTES:
        raise UserError(f"{file} has more than {MAX_BYTES // 2**20} MiB, which is no clip.")
    lines = file.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    numbered = [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]
    # The address is not a row; a file that starts with a row has none.
    rows = numbered if numbered and _is_row(numbered[0][1]) else numbered[1:]
    return Capture([_list_row(number, words, photos) for number, words in rows])


def read_row(values: Sequence[float]) -> tuple[np.ndarray, Numbers]:
    """Camera-to-world matrix and numbers from the 18 numbers behind a time stamp; raises BadFrame."""
    fx, fy, cx, cy = values[:4]
    if not all(abs(v) < 1e6 for v in (fx, fy, cx, cy)):
        raise BadFrame("camera numbers that are NaN or too large")
    return camera_to_world(np.reshape(values[6:18], (3, 4))), Numbers(fx, fy, cx, cy, normalized=True)


def _list_row(number: int, words: list[str], photos: dict[int, Path]) -> Listing:
    try:
        if len(words) != NUMBERS_PER_ROW:
            raise ValueError
        stamp, values = int(words[0]), [float(word) for word in words[1:]]
    except ValueError:
        return Listing(f"line {number}", None, problem=f"not a row of {NUMBERS_PER_ROW} numbers")
    photo = photos.get(stamp)
    name = photo.name if photo else str(stamp)
    try:
        c2w, numbers = read_row(values)
    except BadFrame as problem:
        return Listing(name, None, problem=str(problem))
    return Listing(name, photo, c2w, numbers)


def _photos_by_stamp(file: Path) -> dict[int, Path]:
    """Photos of a clip, in the first of the usual places that has any."""
    # Beside the file or in folders beside its own folder; frames of train/NAME.txt may lie in frames/train/NAME.
    above = list(dict.fromkeys([file.parent, *file.absolute().parents[:3]]))
    near = [folder for start in above for folder in [start, *_subfolders(start)]]
    places = [folder / part for folder in near for part in (Path(file.stem), Path(file.parent.name, file.stem))]
    places += [folder / kind for folder in above[:3] for kind in ("frames", "images")] + [file.parent]
    for place in places:
        try:
            files = [f for f in place.iterdir() if f.suffix.lower() in PHOTO_SUFFIXES and f.stem.isdecimal()]
        except OSError:
            continue
        if files:
            return {int(f.stem): f for f in sorted(files) if len(f.stem) < 20}
    return {}


def _subfolders(folder: Path) -> list[Path]:
    try:
        return sorted(Path(entry.path) for entry in islice(os.scandir(folder), MAX_LOOKED_AT) if entry.is_dir())
    except OSError:
        return []


def _is_clip(file: Path) -> bool:
    try:
        with file.open(encoding="utf-8-sig", errors="replace") as lines:
            return any(_is_row(lines.readline(4096).split()) for _ in range(2))
    except OSError:
        return False


def _is_row(words: list[str]) -> bool:
    try:
        return len(words) == NUMBERS_PER_ROW and len([float(word) for word in words]) > 0 and int(words[0]) >= 0
    except ValueError:
        return False
