"""Readers of capture formats. A new format is a new file here, added to `FORMATS`.

Each file has a `NAME` for people and two functions: `matches(path) -> bool` looks at names (and at the first lines
where names say too little), and `parse(path) -> Capture` lists photos and cameras in OpenCV axes without opening any
photo. Formats that keep several scenes in one place also have `scenes(path)`, the paths of all of them; `parse` is then
given one of these. Which photos exist, are whole and have a sound camera is checked later, once for all formats.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from types import ModuleType

from data.errors import UserError
from data.files import PHOTO_SUFFIXES
from data.frames import Capture
from data.parsers import (
    blender,
    co3d,
    colmap,
    dl3dv,
    lact,
    llff,
    lvsm,
    realestate10k,
    scene_lists,
    shards,
    torch_chunks,
    transforms,
)

MAX_LOOKED_AT = 500
MAX_NAMED = 5

# Where a folder fits several formats, the first one is taken.
FORMATS: tuple[ModuleType, ...] = (
    blender,
    transforms,
    lact,
    lvsm,
    dl3dv,
    co3d,
    colmap,
    llff,
    realestate10k,
    torch_chunks,
    shards,
    scene_lists,
)


def parse_capture(path: Path) -> tuple[str, Capture]:
    """Recognise a folder or file and list its photos; returns the format's name and the capture."""
    if not os.path.exists(path) and not torch_chunks.matches(path) and not shards.matches(path):
        raise UserError(f"{path} does not exist. Give the folder of a capture.")
    fitting = [module for module in FORMATS if module.matches(path)]
    if not fitting:
        raise UserError(_explain_unknown(path))
    places = _scenes(fitting[0], path)
    if len(places) != 1:
        some = _first([_below(place, path) for place in places])
        example = f", such as {places[0]}" if places else ""
        raise UserError(f"{path} ({fitting[0].NAME}) holds {len(places)} scenes ({some}). Give one of them{example}.")
    if places != [path]:
        return parse_capture(places[0])
    capture = fitting[0].parse(path)
    if len(fitting) > 1:
        others = ", ".join(module.NAME for module in fitting[1:])
        capture.notes.append(f"read as {fitting[0].NAME}; the folder also holds {others}")
    return fitting[0].NAME, capture


def is_capture(path: Path) -> bool:
    """Whether a path looks like a capture, or several, of a known format."""
    return any(module.matches(path) for module in FORMATS)


def is_plain_photos(path: Path) -> bool:
    """Whether a path is a photo or a folder with photos, maybe in folders of their own, without cameras for them."""
    return not is_capture(path) and not _captures_in(path) and _has_photos(path)


def list_scenes(path: str | os.PathLike[str]) -> list[Path]:
    """The paths of all scenes that a path stands for: those of a list, of a folder of clips, or the path itself."""
    path = Path(path).expanduser()
    fitting = [module for module in FORMATS if module.matches(path)]
    return _scenes(fitting[0], path) if fitting else [path]


def _explain_unknown(path: Path) -> str:
    """Why a path is no capture, and what to do."""
    inside = _captures_in(path)
    if len(inside) == 1:
        return f"{path} is not a capture itself, but its folder {inside[0].name} is one. Give {inside[0]}."
    if inside:
        some = _first([folder.name for folder in inside])
        return (
            f"{path} is not a capture itself, but holds {len(inside)} ({some}). Give one of them, such as {inside[0]}."
        )
    if path.is_dir() and not any(path.iterdir()):
        return f"{path} is an empty folder. Give the folder of a capture."
    if path.is_dir() and (runs := sorted(path.glob("*.ckpt"))):
        return f"{path} is the folder of a training run, not a capture. Its checkpoints are files, such as {runs[0]}."
    if path.is_file() and _has_photos(path):
        return f"{path} is a single picture. Give the folder of a capture: photos with a file that tells their cameras."
    if _has_photos(path):
        return (
            f"{path} holds photos, but no file that tells their cameras. "
            f"Find the cameras first: nvs prepare {path} -o SCENE."
        )
    return (
        f"{path} is not a capture of a known format. Give a folder with transforms.json, a COLMAP model in sparse/0 or "
        "another format that README.md lists, or make one of photos, a video or a mesh with nvs prepare."
    )


def _captures_in(path: Path) -> list[Path]:
    """Folders in a folder that look like captures."""
    return [entry for entry in _folders(path) if is_capture(entry)]


def _has_photos(path: Path) -> bool:
    places = [file for folder in (path, *_folders(path)) for file in _files(folder)] if path.is_dir() else [path]
    return any(place.suffix.lower() in PHOTO_SUFFIXES for place in places)


def _folders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir()) if path.is_dir() else []


def _first(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")


def _files(folder: Path) -> list[Path]:
    try:
        return [Path(entry.path) for entry in islice(os.scandir(folder), MAX_LOOKED_AT)]
    except OSError:
        return []


def _scenes(module: ModuleType, path: Path) -> list[Path]:
    return module.scenes(path) if hasattr(module, "scenes") else [path]


def _below(place: Path, path: Path) -> str:
    root = path if path.is_dir() else path.parent
    return place.relative_to(root).as_posix() if place.is_relative_to(root) else str(place)
