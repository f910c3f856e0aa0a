"""Chunks of pixelSplat and MVSplat: .torch files, each a list of clips with cameras and the bytes of their photos.

The cameras are rows of RealEstate10K without the time stamp. A chunk is untrusted: it is loaded without running code
from it, and what it says about sizes is checked. Photos become files in a temporary folder that lives as long as the
process.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.errors import UserError
from data.frames import BadFrame, Capture, Listing
from data.parsers.realestate10k import read_row

NAME = "pixelSplat / MVSplat chunks"

MAX_PHOTO_BYTES = 64 * 2**20
MAX_FRAMES = 100_000
MAX_UNPACKED_BYTES = 64 * 2**30
SUFFIXES = {b"\xff\xd8": ".jpg", b"\x89P": ".png", b"RI": ".webp"}


def matches(path: Path) -> bool:
    """Whether this is a chunk, a clip in one (CHUNK.torch/KEY), or a folder with chunks."""
    return (path.suffix == ".torch" and path.is_file()) or _inside_chunk(path) or bool(_chunks(path))


def scenes(path: Path) -> list[Path]:
    """All clips below a path, each as CHUNK.torch/KEY."""
    if _inside_chunk(path):
        return [path]
    return [chunk / key for chunk in _chunks(path) or [path] for key in _keys(chunk)]


def parse(path: Path) -> Capture:
    """List the photos of one clip; they are named by their time stamps."""
    clip = _find_clip(path)
    photos, cameras = clip.get("images"), clip.get("cameras")
    if not (isinstance(photos, list) and isinstance(cameras, Tensor) and _is_plain(cameras, 2)):
        raise UserError(f"{path} has no images and cameras. Each clip should have both, with a row per photo.")
    if len(photos) != len(cameras) or cameras.shape[1] != 18 or len(photos) > MAX_FRAMES:
        raise UserError(f"{path} has {len(photos)} photos but cameras of shape {tuple(cameras.shape)}, not N x 18.")
    state = path.parent.stat()
    folder = _unpack(path, state.st_size, state.st_mtime_ns)
    names = _names(clip.get("timestamps"), len(photos))
    rows = cameras.double().tolist()
    return Capture([_list_photo(i, names[i], row, folder) for i, row in enumerate(rows)], unpacked=folder)


def _list_photo(index: int, name: str, row: list[float], folder: Path) -> Listing:
    try:
        c2w, numbers = read_row(row)
    except BadFrame as problem:
        return Listing(name, None, problem=str(problem))
    files = [file for suffix in SUFFIXES.values() if (file := folder / f"{index:05d}{suffix}").is_file()]
    return Listing(
        name, files[0] if files else None, c2w, numbers, problem=None if files else "not the bytes of a photo"
    )


def _names(stamps: Any, count: int) -> list[str]:
    if _is_plain(stamps, 1) and len(stamps) == count:
        return [
            f"{int(stamp)}.jpg" if abs(stamp) < 2**63 else f"{i:05d}.jpg" for i, stamp in enumerate(stamps.tolist())
        ]
    return [f"{i:05d}.jpg" for i in range(count)]


@cache
def _unpack(place: Path, size: int, modified: int) -> Path:
    """A folder with the photos of a clip, NUMBER.jpg; the same clip is unpacked once."""
    usable = {i: photo for i, photo in enumerate(_find_clip(place)["images"]) if _is_photo(photo)}
    total = sum(photo.numel() for photo in usable.values())
    if total > min(MAX_UNPACKED_BYTES, 2 * size):
        raise UserError(f"{place} would unpack into {total / 2**20:.0f} MiB, more than the file holds. Make it again.")
    folder = Path(tempfile.mkdtemp(prefix="nvs-clip-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if total > shutil.disk_usage(folder).free:
        raise UserError(f"{place} needs {total / 2**20:.0f} MiB in {folder.parent}. Free some space or set TMPDIR.")
    for i, photo in usable.items():
        content = photo.contiguous().numpy().tobytes()
        (folder / f"{i:05d}{SUFFIXES[content[:2]]}").write_bytes(content)
    return folder


def _is_photo(photo: Any) -> bool:
    if not _is_plain(photo, 1) or photo.dtype != torch.uint8 or not 2 < len(photo) <= MAX_PHOTO_BYTES:
        return False
    return photo[:2].contiguous().numpy().tobytes() in SUFFIXES


def _is_plain(value: Any, dimensions: int) -> bool:
    """Whether this is a dense tensor of real numbers that is really there."""
    dense = isinstance(value, Tensor) and value.layout == torch.strided and not (value.is_meta or value.is_quantized)
    return dense and value.ndim == dimensions and not value.is_complex()


def _find_clip(place: Path) -> Mapping[str, Any]:
    for clip in _clips(place.parent):
        if clip.get("key") == place.name:
            return clip
    raise UserError(f"{place.parent} has no clip {place.name}. nvs inspect {place.parent} lists those it has.")


def _clips(chunk: Path) -> list[Mapping[str, Any]]:
    """The clips of a chunk, whose tensors stay on disk until they are looked at."""
    try:
        with zipfile.ZipFile(chunk) as archive:
            compressed = any(m.compress_type != zipfile.ZIP_STORED for m in archive.infolist())
        # torch.save never compresses; taking only such files bounds the memory by the size of the file.
        content = None if compressed else torch.load(chunk, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError as error:
        raise UserError(f"{chunk} does not exist.") from error
    except Exception as error:  # the reader of torch raises many types on damaged files
        raise UserError(f"{chunk} is cut off, damaged or holds more than plain tensors. Download it again.") from error
    if not isinstance(content, list):
        kind = "is compressed" if compressed else "holds no list of clips"
        raise UserError(f"{chunk} {kind}. It should be a chunk as pixelSplat writes them.")
    return [clip for clip in content if isinstance(clip, Mapping)]


def _keys(chunk: Path) -> list[str]:
    """Names of the clips of a chunk; from index.json where there is one, which is quicker."""
    try:
        index = json.loads((chunk.parent / "index.json").read_text(encoding="utf-8"))
        keys = [key for key, file in index.items() if file == chunk.name]
    except (OSError, ValueError, AttributeError, RecursionError):
        keys = []
    return keys or [key for clip in _clips(chunk) if isinstance(key := clip.get("key"), str) and key]


def _inside_chunk(path: Path) -> bool:
    return path.parent.suffix == ".torch" and path.parent.is_file()


def _chunks(path: Path) -> list[Path]:
    """Chunks in a folder, or in its train/ and test/."""
    try:
        folders = [path, path / "train", path / "test"] if path.is_dir() else []
    except OSError:
        return []
    return [file for folder in folders for file in sorted(folder.glob("*.torch")) if os.path.isfile(file)]
