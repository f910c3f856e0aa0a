"""Readers of capture formats. A new format is a new file here, added to `FORMATS`.

Each file has a `NAME` for people, a `LOOKS_LIKE` that says how the format is recognised, and two functions:
`matches(path) -> bool` looks at names only, and `parse(path) -> Capture` lists photos and cameras in OpenCV axes
without opening any photo. Which photos exist, are whole and have a sound camera is checked later, once for all formats.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from data.errors import UserError
from data.frames import Capture
from data.parsers import blender, lact, lvsm, transforms

# Where a folder fits several formats, the first one is taken.
FORMATS: tuple[ModuleType, ...] = (blender, transforms, lact, lvsm)


def parse_capture(path: Path) -> tuple[str, Capture]:
    """Recognise a folder or file and list its photos; returns the format's name and the capture."""
    if not path.exists():
        raise UserError(f"{path} does not exist. Give the folder of a capture.")
    fitting = [module for module in FORMATS if module.matches(path)]
    if not fitting:
        known = "; ".join(f"{module.NAME} ({module.LOOKS_LIKE})" for module in FORMATS)
        entries = sorted(path.iterdir()) if path.is_dir() else []
        inside = [e.name for e in entries if e.is_dir() and any(module.matches(e) for module in FORMATS)]
        hint = f" Its folder {inside[0]} is one: give that." if inside else ""
        what = "an empty folder" if path.is_dir() and not entries else "not a capture of a known format"
        raise UserError(f"{path} is {what}.{hint} Known formats: {known}.")
    capture = fitting[0].parse(path)
    if len(fitting) > 1:
        others = ", ".join(module.NAME for module in fitting[1:])
        capture.notes.append(f"read as {fitting[0].NAME}; the folder also holds {others}")
    return fitting[0].NAME, capture
