"""Writes procedural scenes as ordinary scene folders: transforms.json and PNG pictures."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from data.made_scenes import describe_cameras, make_scene
from data.procedural.config import ProceduralConfig
from data.procedural.generator import render_samples
from data.procedural.pictures import list_pictures
from data.procedural.sampling import sample


def write_procedural_scene(
    config: ProceduralConfig,
    index: int,
    folder: Path,
    views: int,
    size: tuple[int, int],
    overwrite: bool = False,
) -> bool:
    """Write scene number `index` into `folder`, which appears when complete; False if it was there, made this way.

    Objects become pictures with alpha, rooms pictures without.
    """

    def write_views(images: Path) -> dict[str, Any]:
        drawn = sample(config, index, views)
        with torch.no_grad():
            color, alpha, cameras = render_samples(config, [drawn], size, torch.device("cpu"))
        pixels = color if config.mode == "room" else torch.cat([color, alpha], 2)
        pixels = (pixels[0] * 255 + 0.5).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
        for number, picture in enumerate(pixels):
            Image.fromarray(picture).save(images / f"{number:04d}.png")
        return describe_cameras(drawn.c2w, cameras.intrinsics[0, 0].numpy().astype(np.float64), size)

    return make_scene(folder, describe_recipe(config, index, views, size), overwrite, write_views)


def describe_recipe(config: ProceduralConfig, index: int, views: int, size: tuple[int, int]) -> dict[str, Any]:
    """All that decides how the scene comes out, as JSON gives it back; pictures by their names and sizes."""
    pictures = ""
    if config.pictures:
        files = [(path.name, path.stat().st_size) for path in list_pictures(config.pictures)]
        pictures = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    given = {**asdict(config), "pictures": pictures}
    return json.loads(json.dumps({"procedural": index, "views": views, "size": size, **given}))
