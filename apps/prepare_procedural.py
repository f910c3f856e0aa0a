"""`nvs prepare procedural`: random scenes of analytic shapes as captures with known cameras."""

from __future__ import annotations

import os
from concurrent.futures import as_completed
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from apps.prepare_meshes import core_count, result_of, workers
from apps.progress import progress_bar

if TYPE_CHECKING:
    from data import ProceduralConfig


def prepare_procedural(
    inputs: list[str],
    output: Path | None = None,
    count: int = 100,
    views: int = 24,
    size: tuple[int, int] = (64, 64),
    mode: Literal["object", "room"] = "object",
    shapes: tuple[int, int] = (2, 8),
    pictures: str | None = None,
    picture_share: float = 0.4,
    shadows: bool = True,
    rays_per_side: int = 2,
    first: int = 0,
    seed: int = 0,
    processes: int = 0,
    overwrite: bool = False,
) -> None:
    """Make random scenes as captures: pictures (objects with alpha) and their true cameras.

    Scene number k depends on the seed and k only, so several machines can share the work with --first. Scenes that
    are already there are not made again, so an interrupted run goes on when it is repeated. For training there is no
    need to write them: see data.source in nvs train --help.

      nvs prepare procedural -n 1000 -o set/
      nvs prepare procedural -n 50 -o rooms/ --mode room --views 40 --size 128 128

    Args:
        inputs: the word procedural
        output: folder for one scene folder each
        count: number of scenes
        views: pictures per scene
        size: height and width of the pictures in pixels
        mode: one object on white, or a room with the cameras in it
        shapes: fewest and most shapes of an object (before mirroring), or things in a room
        pictures: folder of pictures that serve as textures beside the computed ones
        picture_share: share (0 to 1) of textures taken from the pictures
        shadows: whether lights throw shadows
        rays_per_side: rays along each side of a pixel; 2 means 4 rays a pixel
        first: number of the first scene
        seed: number from which, with a scene's number, all random draws follow
        processes: how many scenes to make at a time; 0 is one per processor core
        overwrite: replace scenes that this command made in another way before
    """
    from data import ProceduralConfig, UsageError, UserError, remove_partial_scene

    if len(inputs) != 1:
        raise UsageError(f"Give the word procedural alone, without {inputs[1]}.")
    if output is None:
        raise UsageError("Say where the scenes go with -o FOLDER.")
    if count < 1 or first < 0 or views < 1 or not 1 <= min(size) <= max(size) <= 4096 or processes < 0:
        raise UserError(
            "Give --count and --views from 1, --size from 1 to 4096, --first and --processes from 0 (one per core)."
        )
    config = ProceduralConfig(
        mode=mode,
        seed=seed,
        shapes=shapes,
        pictures=None if pictures is None else os.path.abspath(pictures),
        picture_share=picture_share,
        shadows=shadows,
        rays_per_side=rays_per_side,
    )
    output = Path(os.path.abspath(output))
    folders = {index: output / f"{index:06d}" for index in range(first, first + count)}
    try:
        kept = make_scenes(config, folders, views, size, overwrite, processes or core_count())
    finally:
        for folder in folders.values():
            remove_partial_scene(folder)
    print(f"{output}: {count - kept} scenes of {views} views made, {kept} were already there")


def make_scenes(
    config: ProceduralConfig,
    folders: dict[int, Path],
    views: int,
    size: tuple[int, int],
    overwrite: bool,
    processes: int,
) -> int:
    """Make each scene in its folder, several at a time, and return how many were there; stops at the first failure."""
    from data import UserError

    kept = 0
    with (
        progress_bar(f"making {len(folders)} scenes", len(folders)) as advance,
        workers(min(processes, len(folders))) as pool,
    ):
        jobs = [pool.submit(make_in_worker, config, i, f, views, size, overwrite) for i, f in folders.items()]
        for job in as_completed(jobs):
            problem = result_of(job)
            if problem:
                raise UserError(problem)
            kept += problem == ""
            advance()
    return kept


def make_in_worker(
    config: ProceduralConfig, index: int, folder: Path, views: int, size: tuple[int, int], overwrite: bool
) -> str | None:
    """Make one scene; returns None if that was done, "" if it was there already, or what is wrong."""
    import torch

    from data import UserError, write_procedural_scene

    # One process per core is faster than one with many threads.
    torch.set_num_threads(1)
    try:
        return None if write_procedural_scene(config, index, folder, views, size, overwrite) else ""
    except UserError as error:
        return str(error)
