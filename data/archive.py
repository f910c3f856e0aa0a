"""Captures in a .zip: unpacked into a temporary folder that lives as long as the process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path

from data.errors import UserError

MAX_FILES = 200_000
MAX_BYTES = 64 * 2**30


def unpack(path: Path) -> Path:
    """The folder of the capture in a .zip; the same file is unpacked once."""
    try:
        state = path.stat()
        return _unpack(path.resolve(), state.st_size, state.st_mtime_ns)
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, ValueError, RuntimeError, NotImplementedError) as error:
        raise UserError(f"{path} cannot be unpacked ({error}). Make the archive again.") from error


@lru_cache(maxsize=64)
def _unpack(path: Path, size: int, modified: int) -> Path:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        total = sum(member.file_size for member in members)
        if len(members) > MAX_FILES or total > MAX_BYTES:
            raise UserError(
                f"{path} would unpack into {len(members)} files of {total / 2**30:.0f} GiB, which is too much. "
                "Unpack it yourself and give the folder."
            )
        folder = Path(tempfile.mkdtemp(prefix="nvs-zip-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        if total > shutil.disk_usage(folder).free:
            raise UserError(f"{path} needs {total / 2**30:.1f} GiB in {folder.parent}. Free some space or set TMPDIR.")
        archive.extractall(folder)  # drops absolute paths and ".." from names
    inside = [entry for entry in folder.iterdir() if not entry.name.startswith((".", "__MACOSX"))]
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder
