"""Packs captures into shards: photos at one size, cameras as JSON, and shards.json beside the tar files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.batches import part_photos
from data.errors import UserError
from data.scene import Scene
from data.shards.index import INDEX, MAX_FRAMES, Shard, Sizes, write_index
from data.shards.reading import MAX_MEMBER_BYTES, MAX_SAMPLE_BYTES
from data.shards.samples import MAX_SIDE, pack_scene
from data.writers import replace_folder

WRITTEN = re.compile(r"[0-9]{6,}\.tar")
"""Names of the files that are written here; others are never replaced."""


@dataclass(frozen=True)
class ShardConfig:
    """How captures are packed."""

    image_size: tuple[int, int]
    """Height and width in pixels of all photos."""
    shard_mb: int = 256
    """A shard is full at this size in MB."""
    quality: int | None = None
    """Photos as WebP of this quality (1..100); none: as PNG, without loss."""

    def __post_init__(self) -> None:
        if not 1 <= min(self.image_size) <= max(self.image_size) <= MAX_SIDE:
            raise UserError(f"--image-size must be two numbers from 1 to {MAX_SIDE}, height and width.")
        if self.shard_mb < 1:
            raise UserError(f"--shard-mb is {self.shard_mb}; give 1 or more.")
        if self.quality is not None and not 1 <= self.quality <= 100:
            raise UserError(f"--quality is {self.quality}; give a number from 1 to 100, or none for PNG.")


@dataclass
class _Open:
    """The shard that is being filled."""

    file: Any
    writer: Any
    scenes: list[Sizes]
    size: int = 0


def write_shards(
    scenes: Iterable[Scene],
    folder: Path,
    config: ShardConfig,
    overwrite: bool = False,
    on_scene: Callable[[], object] = lambda: None,
    on_problem: Callable[[str], object] = lambda problem: None,
) -> list[Shard]:
    """Pack scenes in their order; the folder appears when it is complete, and replaces only shards.

    The same scenes give the same bytes. `on_scene` is called for each scene, and `on_problem` with a sentence about
    each scene that is left out because a photo of it cannot be read or it has more than is ever read.
    """
    check_folder(folder, overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replace_folder(folder) as temporary:
        shards, fov = _write(scenes, temporary, config, on_scene, on_problem)
        if not shards:
            raise UserError("There is no capture to pack.")
        (temporary / INDEX).write_text(write_index(shards, config.image_size, fov), encoding="utf-8")
    return shards


def check_folder(folder: Path, overwrite: bool) -> None:
    """Refuse a place that holds anything, other than shards that may be replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UserError(f"{folder} is a file. Give a folder.")
    entries = sorted(os.listdir(folder))
    foreign = [name for name in entries if name != INDEX and not WRITTEN.fullmatch(name)]
    if foreign or (entries and INDEX not in entries):
        name = (foreign or entries)[0]
        raise UserError(f"{folder} holds {name}, which is not replaced. Choose another place or move that.")
    if entries and not overwrite:
        raise UserError(f"{folder} holds shards. Choose another place, or replace them with --overwrite.")


def _write(
    scenes: Iterable[Scene],
    folder: Path,
    config: ShardConfig,
    on_scene: Callable[[], object],
    on_problem: Callable[[str], object],
) -> tuple[list[Shard], tuple[float, float]]:
    shards: list[Shard] = []
    lowest, highest = math.inf, 0.0
    current: _Open | None = None
    try:
        for number, scene in enumerate(scenes):
            on_scene()
            try:
                sample = _pack(scene, config)
            except UserError as problem:
                on_problem(str(problem))
                continue
            size = sum(map(len, sample.values()))
            if current and current.size + size > config.shard_mb * 1e6:
                shards.append(_close(current))
                current = None
            current = current or _begin(folder / f"{len(shards):06d}.tar")
            current.writer.write({"__key__": f"{number:08d}", **sample})
            current.size += size
            train = set(part_photos(scene).train)
            current.scenes.append(Sizes(len(scene), tuple(i for i in range(len(scene)) if i not in train)))
            angles = [_fov(scene, i, config.image_size) for i in range(len(scene))]
            lowest, highest = min(lowest, *angles), max(highest, *angles)
        if current:
            shards.append(_close(current))
            current = None
    finally:
        if current:
            current.file.close()
    return shards, (lowest, highest)


def _pack(scene: Scene, config: ShardConfig) -> dict[str, bytes]:
    """The content of a sample; refuses what reading would refuse."""
    if len(scene) > MAX_FRAMES:
        raise UserError(f"{scene.path} has {len(scene)} photos, and a shard takes {MAX_FRAMES} of a capture. Split it.")
    sample = pack_scene(scene, config.image_size, config.quality)
    sizes = [len(content) for content in sample.values()]
    if sum(sizes) > MAX_SAMPLE_BYTES or max(sizes) > MAX_MEMBER_BYTES:
        raise UserError(
            f"{scene.path} is too large for a shard ({sum(sizes) / 1e6:.0f} MB). Lower --image-size or give --quality."
        )
    return sample


def _begin(path: Path) -> _Open:
    from webdataset.writer import TarWriter

    file = path.open("wb")
    return _Open(file, TarWriter(file, encoder=False, mtime=0, user="", group="", mode=0o644), [])


def _close(shard: _Open) -> Shard:
    shard.writer.close()
    shard.file.close()
    return Shard(Path(shard.file.name).name, tuple(shard.scenes))


def _fov(scene: Scene, index: int, image_size: tuple[int, int]) -> float:
    """Horizontal field of view in degrees as packed."""
    focal = scene.cameras([index], image_size).intrinsics[0, 0].item()
    return math.degrees(2 * math.atan(image_size[1] / 2 / focal))
