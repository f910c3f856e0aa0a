"""Writes procedural scenes as ordinary scene folders: transforms.json and PNG pictures."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from data.meshes.scenes import describe_cameras, may_replace, partial_folder, remove_partial_scene
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
    recipe = describe_recipe(config, index, views, size)
    if folder.exists() and not may_replace(folder, recipe, overwrite):
        return False
    partial = partial_folder(folder)
    remove_partial_scene(folder)
    try:
        (partial / "images").mkdir(parents=True)
        drawn = sample(config, index, views)
        with torch.no_grad():
            color, alpha, cameras = render_samples(config, [drawn], size, torch.device("cpu"))
        pixels = color if config.mode == "room" else torch.cat([color, alpha], 2)
        pixels = (pixels[0] * 255 + 0.5).to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
        for number, picture in enumerate(pixels):
            Image.fromarray(picture).save(partial / "images" / f"{number:04d}.png")
        intrinsics = cameras.intrinsics[0, 0].numpy().astype(np.float64)
        text = json.dumps({**describe_cameras(drawn.c2w, intrinsics, size), "made_by_nvs_prepare": recipe}, indent=1)
        (partial / "transforms.json").write_text(text + "\n", encoding="utf-8")
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    finally:
        remove_partial_scene(folder)
    return True


def describe_recipe(config: ProceduralConfig, index: int, views: int, size: tuple[int, int]) -> dict[str, Any]:
    """All that decides how the scene comes out, as JSON gives it back; pictures by their names and sizes."""
    pictures = ""
    if config.pictures:
        files = [(path.name, path.stat().st_size) for path in list_pictures(config.pictures)]
        pictures = hashlib.sha256(json.dumps(files).encode()).hexdigest()
    given = {**asdict(config), "pictures": pictures}
    return json.loads(json.dumps({"procedural": index, "views": views, "size": size, **given}))
