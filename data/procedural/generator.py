"""Posed views of random scenes, made on the fly."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from data.cameras import Cameras
from data.errors import UserError
from data.procedural.config import ProceduralConfig
from data.procedural.pictures import load_pictures
from data.procedural.rendering import render
from data.procedural.sampling import Sample, sample
from data.procedural.scene import SceneTables
from data.views import Views


class Speed(NamedTuple):
    """Views a second by the clock, and by the processor time of this process (all threads together)."""

    views_per_second: float
    views_per_cpu_second: float


def procedural_views(
    config: ProceduralConfig,
    index: int,
    views: int,
    image_size: tuple[int, int],
    device: torch.device | str = "cpu",
) -> Views:
    """The first `views` views of scene number `index`; the same numbers whatever else is made, and in what order."""
    batch = procedural_batch(config, [index], views, image_size, device)
    return Views(
        batch.c2w[0],
        batch.intrinsics[0],
        batch.image_size,
        images=batch.images[0],
        alpha=None if batch.alpha is None else batch.alpha[0],
        world_to_scene=None if batch.world_to_scene is None else batch.world_to_scene[0],
    )


@torch.no_grad()
def procedural_batch(
    config: ProceduralConfig,
    indices: Sequence[int],
    views: int,
    image_size: tuple[int, int],
    device: torch.device | str = "cpu",
) -> Views:
    """Views of several scenes [b v ...], equal to those of `procedural_views` on the same kind of device.

    `alpha` is the share of each pixel's rays that hit something (1 everywhere in rooms).
    """
    _check(indices, views, image_size)
    device = torch.device(device)
    samples = [sample(config, index, views) for index in indices]
    color, alpha, cameras = render_samples(config, samples, image_size, device)
    background = torch.tensor(config.background, device=device).view(3, 1, 1)
    return Views(
        cameras.c2w,
        cameras.intrinsics,
        image_size,
        images=color * alpha + background * (1 - alpha),
        alpha=alpha,
        world_to_scene=torch.eye(4, dtype=torch.float64).expand(len(samples), 4, 4).clone(),
    )


def render_samples(
    config: ProceduralConfig, samples: list[Sample], image_size: tuple[int, int], device: torch.device
) -> tuple[Float[Tensor, "b v 3 h w"], Float[Tensor, "b v 1 h w"], Cameras]:
    """Straight colours (not mixed with the background), alpha and cameras of scenes that were drawn."""
    if device.type == "cpu":
        _keep_freed_memory()
    atlas = load_pictures(config.pictures, device) if config.pictures else None
    tables = SceneTables.stack([s.scene for s in samples]).to(device)
    cameras = _cameras(samples, image_size).to(device)
    color, alpha = render(tables, cameras, config.rays_per_side, config.shadows, atlas)
    return color, alpha, cameras


def measure_speed(
    config: ProceduralConfig,
    image_size: tuple[int, int] = (64, 64),
    views: int = 8,
    scenes: int = 8,
    seconds: float = 3.0,
    device: torch.device | str = "cpu",
) -> Speed:
    """Make batches of `scenes` x `views` for some seconds, after one to warm up."""
    procedural_batch(config, range(scenes), views, image_size, device)
    made, start, cpu_start = 0, time.perf_counter(), time.process_time()
    while not made or time.perf_counter() - start < seconds:
        made += scenes
        batch = procedural_batch(config, range(made, made + scenes), views, image_size, device)
        # The number can be told only when a GPU has finished.
        batch.images.sum().item()
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    return Speed(made * views / wall, made * views / cpu)


def _check(indices: Sequence[int], views: int, image_size: tuple[int, int]) -> None:
    if not len(indices) or min(indices) < 0:
        raise UserError("Procedural scenes have the numbers 0, 1, 2 and so on; give at least one, and none below 0.")
    if views < 1 or min(image_size) < 1:
        raise UserError(f"{views} views of {image_size[0]} x {image_size[1]} pixels were asked for; give at least 1.")


@lru_cache
def _keep_freed_memory() -> None:
    """Let the C library (glibc) keep what torch frees for the next tensors, as long as the process lives.

    By default it returns blocks from 128 kB on to the system at once, and getting them back takes longer than the
    arithmetic. It takes the largest block freed so far, up to 32 MB, as the new limit.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


def _cameras(samples: list[Sample], image_size: tuple[int, int]) -> Cameras:
    h, w = image_size
    focal = np.array([w / 2 / np.tan(np.radians(s.fov) / 2) for s in samples])
    intrinsics = np.stack([focal, focal, np.full_like(focal, w / 2), np.full_like(focal, h / 2)], axis=1)
    per_view = np.repeat(intrinsics[:, None], len(samples[0].c2w), axis=1)
    c2w = np.stack([s.c2w for s in samples])
    return Cameras(torch.from_numpy(c2w).to(torch.float32), torch.from_numpy(per_view).to(torch.float32), image_size)
