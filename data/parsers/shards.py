"""Shards made by `nvs convert --to shards`: .tar files, each with many captures; one capture is SHARD.tar/KEY.

A folder is one of shards if shards.json lies in it: any folder may hold an archive of something else.

A shard is untrusted. The photos of a capture that is opened become files in a temporary folder that lives as long as
the process; for training, shards are read as a stream instead (data/shards).
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from data.errors import UserError
from data.frames import Capture
from data.shards import samples
from data.shards.index import INDEX
from data.shards.reading import read_samples

NAME = samples.NAME

MAX_LOOKED_AT = 10_000


def matches(path: Path) -> bool:
    """Whether this is a shard, a capture in one (SHARD.tar/KEY), or a folder with shards."""
    return (path.suffix == ".tar" and path.is_file()) or _inside_shard(path) or bool(_shards(path))


def scenes(path: Path) -> list[Path]:
    """All captures below a path, each as SHARD.tar/KEY."""
    if _inside_shard(path):
        return [path]
    return [shard / key for shard in _shards(path) or [path] for key in _keys(*_state(shard))]


def parse(path: Path) -> Capture:
    """List the photos of one capture."""
    packed, folder = _unpack(path, *_state(path.parent)[1:])
    files = {photo: folder / photo for photo in packed.photos}
    listings = [
        listing if listing.problem else replace(listing, file=files[photo])
        for listing, photo in zip(packed.listings, packed.photos, strict=True)
    ]
    return Capture(listings, [f"packed from {packed.name}"], unpacked=folder)


@cache
def _unpack(path: Path, size: int, modified: int) -> tuple[samples.Packed, Path]:
    """What a capture lists and a temporary folder with its photos; the same capture is unpacked once.

    The names of the photos are plain, or reading would have refused them.
    """
    sample = next((s for s in read_samples(str(path.parent)) if s["__key__"] == path.name), None)
    if sample is None:
        raise UserError(f"{path.parent} has no capture {path.name}. nvs inspect {path.parent} lists those it has.")
    packed = samples.list_packed(sample, str(path))
    folder = Path(tempfile.mkdtemp(prefix="nvs-shard-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, content in sample.items():
        if not name.startswith("__") and name != "json":
            (folder / name).write_bytes(content)
    return packed, folder


def _state(shard: Path) -> tuple[Path, int, int]:
    try:
        state = shard.stat()
    except OSError as error:
        raise UserError(f"{shard} cannot be read ({error.strerror}).") from error
    return shard, state.st_size, state.st_mtime_ns


@cache
def _keys(shard: Path, size: int, modified: int) -> list[str]:
    """Names of the captures of a shard; the same file is looked through once."""
    return [sample["__key__"] for sample in read_samples(str(shard))]


def _inside_shard(path: Path) -> bool:
    return path.parent.suffix == ".tar" and path.parent.is_file()


def _shards(path: Path) -> list[Path]:
    try:
        entries = sorted(path.glob("*.tar"))[:MAX_LOOKED_AT] if (path / INDEX).is_file() else []
    except OSError:
        return []
    return [entry for entry in entries if os.path.isfile(entry)]
