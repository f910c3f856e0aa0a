"""Photos and a reconstruction made up for the tests of `data.photos`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image

from data.photos import features


def silent(*_: object) -> None:
    """Progress that nobody watches."""


def pycolmap_or_skip() -> ModuleType:
    """The package pycolmap; without it the test is skipped."""
    pytest.importorskip("pycolmap", reason="needs package pycolmap")
    return features.require_pycolmap()


def save_photo(path: Path, size: tuple[int, int] = (48, 64), seed: int = 0, blur: int = 4, **options) -> Path:
    """A picture of noise that is blurred over `blur` pixels, (h, w) pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cells = np.random.default_rng(seed).integers(0, 256, (size[0] // blur, size[1] // blur, 3), dtype=np.uint8)
    Image.fromarray(cells).resize(size[::-1], Image.Resampling.BICUBIC).save(path, **options)
    return path


def write_film(path: Path, frames: list[np.ndarray]) -> Path:
    """A film of grey frames (h, w) with values in 0..1."""
    h, w = frames[0].shape
    writer = imageio_ffmpeg.write_frames(str(path), (w, h), fps=30, quality=8, macro_block_size=1)
    writer.send(None)
    for grey in frames:
        writer.send(np.repeat((grey * 255).astype(np.uint8)[..., None], 3, axis=-1).tobytes())
    writer.close()
    return path


def make_truth(work: Path) -> Any:
    """Seven true cameras of 240x320 pixels that see 80 points; writes features and matches as `work`/normal.db."""
    pycolmap = pycolmap_or_skip()
    pycolmap.set_random_seed(0)
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_frames_per_rig, options.num_points3D = 1, 7, 80
    options.camera_width, options.camera_height = 320, 240
    options.camera_params = [400.0, 160.0, 120.0, -0.08]
    (work / "pictures").mkdir(parents=True)
    with features.open_database(work / "normal.db") as db:
        model = pycolmap.synthesize_dataset(options, db)
        for image in db.read_all_images():
            image.name = model.images[image.image_id].name = features.picture_name(image.image_id - 1)
            db.update_image(image)
    return model
