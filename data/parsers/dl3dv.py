"""Scenes of the DL3DV benchmark, whose transforms.json lies in the folder nerfstudio.

In other editions of DL3DV the folder of a scene holds transforms.json or a COLMAP model itself.
"""

from __future__ import annotations

from pathlib import Path

from data.frames import Capture
from data.parsers import transforms

NAME = "DL3DV"


def matches(path: Path) -> bool:
    """Whether the folder has a subfolder nerfstudio with a transforms.json."""
    return path.is_dir() and (path / "nerfstudio" / "transforms.json").is_file()


def parse(path: Path) -> Capture:
    """List the frames of that file."""
    return transforms.parse(path / "nerfstudio")
