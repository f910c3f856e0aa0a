"""`nvs prepare` on photos or a video: structure from motion, told as it goes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

from apps.progress import progress_bars


def prepare_photos(
    inputs: list[str],
    output: Path | None = None,
    max_size: int = 1024,
    frames: int = 50,
    matching: Literal["auto", "exhaustive", "sequential"] = "auto",
    overwrite: bool = False,
) -> None:
    """Find the cameras of photos or of a video by structure from motion, and write pictures and cameras as a scene.

    Photos of one camera and zoom share one lens. Pictures come out straightened, with cameras as transforms.json and
    as a COLMAP model, and report.json tells which photos found no place and why. An interrupted run goes on when it is
    repeated. Needs the package pycolmap (pip install "nvs[sfm]").

      nvs prepare photos/ -o scene/
      nvs prepare walk.mp4 -o scene/ --frames 80 --max-size 1600

    Args:
        inputs: photos, folders or .zip files of them, or one video
        output: folder for the scene, which appears when it is complete
        max_size: longest side of the pictures in pixels; smaller photos keep their size
        frames: how many frames to take of a video: sharp ones, spread over what it shows
        matching: which photos to compare: all pairs, neighbours in the order of their names, or, by itself, all pairs
            below 60 photos and otherwise neighbours and look-alikes
        overwrite: replace a scene that this command made in another way before
    """
    from data import PhotoSceneConfig, UsageError, write_photo_scene

    if output is None:
        raise UsageError("Say where the scene goes with -o FOLDER.")
    config = PhotoSceneConfig(max_size=max_size, frames=frames, matching=matching)
    output = Path(os.path.abspath(output))
    try:
        with progress_bars() as on_step:
            report = write_photo_scene([Path(name).expanduser() for name in inputs], output, config, overwrite, on_step)
    except KeyboardInterrupt:
        print("What is done is kept: the same command goes on from there.", file=sys.stderr)
        raise
    for line in report.lines():
        print(line)
    print(f"scene: {output}")
