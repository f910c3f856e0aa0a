"""The viewer's temporary files: in one folder, of bounded size, gone with what needs them and at the latest at exit."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from data import UserError


@dataclass(frozen=True)
class Limits:
    """What one viewer takes on, so that nobody can use up the machine."""

    upload_bytes: int = 500 * 2**20
    """One upload."""
    unpacked_bytes: int = 2 * 2**30
    """What one archive may unpack into."""
    disk_bytes: int = 8 * 2**30
    """All uploads that are open, together."""
    files: int = 5000
    """Files of one upload."""
    photos: int = 2000
    """Photos of one scene, and cameras of one path."""
    photo_pixels: int = 50_000_000
    """Pixels of one photo."""
    scene_bytes: int = 2 * 2**30
    """All scenes in memory."""
    photo_cache_bytes: int = 256 * 2**20
    """Decoded photos in memory."""
    viewers: int = 32
    """Tabs that are connected."""
    sessions: int = 64
    """Sessions that are kept."""
    frames: int = 5000
    """Pictures of one film."""
    film_pixels: int = 1920 * 1080
    """Pixels of one picture of a film."""
    grace_seconds: float = 30.0
    """How long a scene is kept for a tab that has lost its connection."""
    silent_seconds: float = 600.0
    """The same for a page without a WebSocket, which browsers let ask but once a minute while it is not looked at."""


class Folder:
    """A temporary folder that is removed when nothing refers to this object any more."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self.path = path
        self.remove = weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)

    @contextmanager
    def kept_on_success(self) -> Iterator[Folder]:
        """Remove the folder at once if the block fails or is stopped."""
        try:
            yield self
        except BaseException:
            self.remove()
            raise

    @property
    def num_bytes(self) -> int:
        """Bytes of all files in it."""
        return _size(self.path)


class Workspace:
    """Where uploads, films and states lie for as long as they are needed."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.root = Path(tempfile.mkdtemp(prefix="nvs-view-"))
        self.uploads = self.root / "uploads"
        """Where Gradio puts what it receives and what it hands out."""
        self.uploads.mkdir()
        self.close = weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)
        self._numbers = itertools.count()
        self._folders: weakref.WeakSet[Folder] = weakref.WeakSet()
        self._lock = threading.Lock()

    def folder(self) -> Folder:
        """A new empty folder; refused while the open ones fill the room that there is."""
        with self._lock:
            used = sum(folder.num_bytes for folder in self._folders)
            if used > self.limits.disk_bytes:
                raise UserError("The room for uploads on this server is full. Close scenes, or try again later.")
            folder = Folder(self.root / f"work{next(self._numbers)}")
            self._folders.add(folder)
            return folder

    def trim(self) -> None:
        """Remove the oldest received files where they take more than the room for uploads."""
        files = [path for path in self.uploads.rglob("*") if path.is_file()]
        sizes = {path: (path.stat().st_mtime, path.stat().st_size) for path in files}
        total = sum(size for _, size in sizes.values())
        for path in sorted(files, key=lambda file: sizes[file][0]):
            if total <= self.limits.disk_bytes:
                return
            total -= sizes[path][1]
            path.unlink(missing_ok=True)


def _size(folder: Path) -> int:
    return sum(os.lstat(os.path.join(place, name)).st_size for place, _, names in os.walk(folder) for name in names)
