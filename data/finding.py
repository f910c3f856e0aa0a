"""From what a person names (a path, a pattern, a list, a folder of captures) to the captures it stands for."""

from __future__ import annotations

import glob
import os
from pathlib import Path

from data.errors import UserError
from data.parsers import is_capture, list_scenes


def find_scenes(entry: str | os.PathLike[str]) -> list[Path]:
    """The captures behind a path (also of several), a pattern, or a .txt list with one path a line.

    A folder that is no capture stands for all folders in it if one of these is a capture. What is found may still turn
    out to be unreadable. Raises UserError if nothing matches.
    """
    path = Path(entry).expanduser()
    if path.suffix == ".txt" and not is_capture(path):
        places = _read_list(path)
    elif glob.has_magic(str(path)) and not path.exists():
        places = sorted(Path(p) for p in glob.glob(str(path), recursive=True))
    else:
        places = [path]
    found = [scene for place in places for scene in _expand(place)]
    if not found:
        raise UserError(f"No capture matches {entry}. Check the path or the pattern.")
    return found


def _read_list(path: Path) -> list[Path]:
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The list of captures {path} cannot be read: {error}. Check the path.") from error
    return [path.parent / line for line in lines if line and not line.startswith("#")]


def _expand(path: Path) -> list[Path]:
    if path.is_dir() and not is_capture(path):
        folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
        if any(map(is_capture, folders)):
            return folders
    return list_scenes(path)
