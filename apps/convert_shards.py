"""The part of `nvs convert` that packs captures into shards."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from apps.progress import progress_bar

if TYPE_CHECKING:
    from data import Scene

MAX_TOLD = 20
"""So many warnings and unreadable captures are told, the rest counted."""


def convert_shards(
    sources: list[str],
    target: Path,
    image_size: tuple[int, int] | None,
    shard_mb: int,
    quality: int | None,
    overwrite: bool,
) -> None:
    """Pack all captures behind `sources` into shards in the folder `target`; those that cannot be read are told."""
    from data import ShardConfig, UsageError, find_scenes, write_shards

    if image_size is None:
        raise UsageError("Say how large the photos shall be with --image-size, height and width, e.g. 256 256.")
    config = ShardConfig(image_size, shard_mb, quality)
    paths = list(dict.fromkeys(path for source in sources for path in find_scenes(source)))
    told: list[str] = []
    try:
        with progress_bar(f"packing {len(paths)} captures", len(paths)) as advance:
            shards = write_shards(_opened(paths, told), target, config, overwrite, advance, told.append)
    finally:
        for line in told[:MAX_TOLD]:
            print(f"warning: {line}", file=sys.stderr)
        if len(told) > MAX_TOLD:
            print(f"warning: {len(told) - MAX_TOLD} more", file=sys.stderr)
    packed = [sizes for shard in shards for sizes in shard.scenes]
    photos, size = sum(s.frames for s in packed), sum(file.stat().st_size for file in target.glob("*.tar"))
    print(f"{target}: {len(packed)} captures with {photos} photos in {len(shards)} shards, {size / 1e6:.1f} MB")
    if len(packed) < len(paths):
        print(f"{len(paths) - len(packed)} captures could not be packed and are left out")


def _opened(paths: list[Path], told: list[str]) -> Iterator[Scene]:
    """The captures one after the other; what is wrong with them goes into `told`."""
    from data import PhotoCache, UserError, open_scene

    for path in paths:
        try:
            scene = open_scene(path, cache=PhotoCache(0))
        except UserError as error:
            told.append(str(error))
            continue
        told += [f"{scene.name}: {warning}" for warning in scene.warnings]
        yield scene
