"""The captures that come with the project, by name."""

from __future__ import annotations

from pathlib import Path

CAPTURES = Path(__file__).parent / "captures"


def bundled_scenes() -> dict[str, Path]:
    """Folders of the shipped captures by name; each can be opened as a scene and holds its attribution."""
    folders = (path for path in CAPTURES.iterdir() if (path / "transforms.json").is_file()) if CAPTURES.is_dir() else ()
    return {path.name: path for path in sorted(folders)}
