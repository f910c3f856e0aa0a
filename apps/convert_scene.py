"""The part of `nvs convert` that writes captures in another format."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data import SceneFormat


def convert_scene(source: str, target: Path, to: SceneFormat, overwrite: bool = False) -> None:
    """Write the capture `source` to the folder `target` in the format `to`, and tell what became of its photos."""
    from rich.console import Console
    from rich.progress import Progress

    from data import open_scene, write_scene

    scene = open_scene(source)
    for warning in scene.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("photos", total=len(scene))
        frames = write_scene(scene, target, to, overwrite, lambda: progress.advance(task))
    copied = sum(frame.copied for frame in frames)
    changed = len(frames) - copied
    text = f"{copied} photos copied" + (f", {changed} straightened or turned and written as PNG" if changed else "")
    print(f"{target}: {scene.format} as {to}, {text}")
    if scene.split and to != "transforms":
        print(f"{to} cannot tell training from test photos: that is not kept")
