"""Captures in a .zip: unpacked into a temporary folder that lives as long as the process."""

from __future__ import annotations

import atexit
import lzma
import shutil
import tempfile
import zipfile
import zlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from data.errors import UserError
from data.frames import Capture, Listing

MAX_FILES = 200_000
MAX_BYTES = 64 * 2**30


# What zipfile raises on damaged archives; an OSError without a number is a damaged bzip2 stream.
DAMAGED = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
    NotImplementedError,
)


class Unpacked(NamedTuple):
    """Where an archive was unpacked, and the folder in there that is the capture."""

    root: Path
    capture: Path


def unpack(path: Path) -> Unpacked:
    """Unpack a .zip into a temporary folder; the same file is unpacked once."""
    try:
        state = path.stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    return _unpack(path.resolve(), state.st_size, state.st_mtime_ns)


def unpack_into(path: Path, folder: Path, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> Unpacked:
    """Unpack a .zip, which may come from anyone, into a folder that is there; nothing gets out of it."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            # No more than the size in the list is unpacked of a member, so that the list cannot lie.
            total = sum(member.file_size for member in members)
            if len(members) > max_files or total > max_bytes:
                raise UserError(
                    f"{path} would unpack into {len(members)} files of {total / 2**30:.1f} GiB, which is too much. "
                    "Unpack it yourself and give the folder."
                )
            if total > shutil.disk_usage(folder).free:
                raise UserError(
                    f"{path} needs {total / 2**30:.1f} GiB in {folder.parent}. Free some space or set TMPDIR."
                )
            archive.extractall(folder)  # drops absolute paths and ".." from names
    except DAMAGED as error:
        if isinstance(error, OSError) and error.strerror:
            raise UserError(
                f"{path} cannot be unpacked: {error.strerror.lower()}. Unpack it yourself and give the folder."
            ) from error
        raise UserError(f"{path} cannot be unpacked ({error}). Make the archive again.") from error
    inside = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX"))]
    return Unpacked(folder, inside[0] if len(inside) == 1 and inside[0].is_dir() else folder)


def keep_inside(capture: Capture, root: Path) -> Capture:
    """The capture without files from outside of `root`: an archive may come from anyone and must not name them."""
    roots = [folder.resolve() for folder in (root, capture.unpacked) if folder is not None]

    def keep(listing: Listing) -> Listing:
        if listing.file is None or any(map(listing.file.resolve().is_relative_to, roots)):
            return listing
        return replace(listing, file=None, problem="lies outside of the archive")

    return replace(capture, listings=[keep(listing) for listing in capture.listings])


@lru_cache(maxsize=64)
def _unpack(path: Path, size: int, modified: int) -> Unpacked:
    folder = Path(tempfile.mkdtemp(prefix="nvs-zip-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return unpack_into(path, folder)
