"""Lists of captures: .txt with a path a line (full_list.txt of LVSM) or .json with a list of paths (LaCT).

A path starts at the folder of the list or at one of the two folders above it, or else where the program was started.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from data.errors import UserError
from data.frames import Capture

NAME = "list of captures"

MAX_BYTES = 256 * 2**20
LEVELS_UP = 2


def matches(path: Path) -> bool:
    """Whether this file names captures."""
    entries = _entries(path)
    return any(e.endswith(".json") or os.path.exists(_resolve(e, path)) for e in entries[:10])


def scenes(path: Path) -> list[Path]:
    """All captures that the list names, whether they exist or not; raises UserError if it names another list."""
    found = [_resolve(entry, path) for entry in _entries(path)]
    if len(found) == 1 and matches(found[0]):
        raise UserError(f"{path} is a list that names only another list. Name captures in it.")
    return found


def parse(path: Path) -> Capture:
    """Never reached: what `scenes` returns is never a list."""
    raise UserError(f"{path} is a list of captures. Give one of those that it names.")


def _entries(path: Path) -> list[str]:
    if path.suffix not in (".txt", ".json") or not path.is_file():
        return []
    try:
        if path.stat().st_size > MAX_BYTES:
            return []
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".txt":
            return [line for raw in text.splitlines() if (line := raw.strip()) and not line.startswith("#")]
        content = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return []
    whole = isinstance(content, list) and all(isinstance(entry, str) and entry for entry in content)
    return content if whole else []


def _resolve(entry: str, path: Path) -> Path:
    starts = [path.parent, *path.absolute().parents[1 : 1 + LEVELS_UP], Path()]
    # Other than Path.exists, this takes names that no file can have.
    found = [start / entry for start in starts if os.path.exists(start / entry)]
    return found[0] if found else path.parent / entry
