"""Files: written whole or not at all, JSON read tolerantly, listed photos found where they really are."""

from __future__ import annotations

import json
import os
import secrets
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from data.errors import UserError

PHOTO_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".jp2", ".avif", ".heic", ".exr")
DOWNSCALED = (2, 4, 8)


@contextmanager
def write_atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path in the same folder (and with the same suffix), moved to `path` if the block succeeds."""
    path = Path(path)
    temporary = path.with_name(f".part-{secrets.token_hex(4)}{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}). Choose another place.") from error
    # Some writers make the file anew and private; it gets back the mode that an ordinary new file has.
    mode = temporary.stat().st_mode
    try:
        yield temporary
        temporary.chmod(mode)
        # Without this, a power cut after the move can leave a complete name on incomplete content.
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def check_free(path: str | os.PathLike[str], overwrite: bool) -> None:
    """Refuse to write over a file, or into a folder that holds anything, unless that was asked for."""
    place = Path(path)
    is_full = place.is_dir() and any(place.iterdir())
    if not overwrite and (is_full or (place.exists() and not place.is_dir())):
        state = "is not empty" if is_full else "exists already"
        raise UserError(f"{path} {state}. Choose another place, or replace it with --overwrite.")


def read_json(path: Path) -> Any:
    """Parse a JSON file; a byte-order mark and the tokens NaN and Infinity are taken."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}). Write it again or repair that place.") from error


class Found(NamedTuple):
    """A photo on disk, and the N of the images_N folder if it was found in a downscaled copy (else 1)."""

    path: Path
    downscale: int = 1


class PhotoFinder:
    """Finds listed photos below a folder, whatever dialect the path is written in. Folders are listed once."""

    def __init__(self, root: Path) -> None:
        """Search below `root`."""
        self.root = root
        self._folders: dict[Path, dict[str, Path]] = {}

    def find(self, written: str) -> Found | None:
        """The photo a capture calls `written`: as it stands, with a suffix, or in images/ and images_N/.

        Backslashes separate folders if the path does not exist as written. Suffixes are tried on the exact stem only,
        so `r_0` never becomes `r_0_normal.png`. Names are compared in Unicode NFC.
        """
        for text in dict.fromkeys((written, written.replace("\\", "/"))):
            path = PurePosixPath(text)
            if not path.name or "\0" in text:
                continue
            for folder in self._folders_for(path):
                if found := self._in_folder(folder, path.name):
                    return Found(found)
        path = PurePosixPath(written.replace("\\", "/"))
        for factor in DOWNSCALED:
            for folder in self._downscaled_folders(path.parent, factor):
                if path.name and (found := self._in_folder(folder, path.name)):
                    return Found(found, factor)
        return None

    def _folders_for(self, path: PurePosixPath) -> Iterator[Path]:
        yield self.root / path.parent
        # A path from another machine: its last folders may exist here.
        for start in range(1, len(path.parent.parts)):
            yield self.root.joinpath(*path.parent.parts[start:])
        yield self.root / "images"

    def _downscaled_folders(self, parent: PurePosixPath, factor: int) -> Iterator[Path]:
        if "images" in parent.parts:
            at = len(parent.parts) - 1 - parent.parts[::-1].index("images")
            tail = parent.parts[at + 1 :]
            yield self.root.joinpath(*parent.parts[:at], f"images_{factor}", *tail)
            yield self.root.joinpath(f"images_{factor}", *tail)
        yield self.root / f"images_{factor}"

    def _in_folder(self, folder: Path, name: str) -> Path | None:
        files = self._files(folder)
        suffix = PurePosixPath(name).suffix
        names = [name, *(name + s for s in PHOTO_SUFFIXES)]
        if suffix.lower() in PHOTO_SUFFIXES:
            names += [name[: -len(suffix)] + s for s in PHOTO_SUFFIXES]
        for candidate in names:
            key = unicodedata.normalize("NFC", candidate)
            if found := files.get(key) or files.get(key.lower()):
                return found
        return None

    def _files(self, folder: Path) -> dict[str, Path]:
        """Files of a folder by their NFC name and, where that leaves no doubt, by the name in lower case."""
        if folder not in self._folders:
            files: dict[str, Path] = {}
            try:
                entries = sorted(e.name for e in os.scandir(folder) if e.is_file())
            except (OSError, ValueError):
                entries = []
            for entry in entries:
                files[unicodedata.normalize("NFC", entry)] = folder / entry
            for entry in entries:
                files.setdefault(unicodedata.normalize("NFC", entry).lower(), folder / entry)
            self._folders[folder] = files
        return self._folders[folder]


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which photo 2 comes before photo 10."""
    parts: list[str] = []
    for character in name:
        if parts and character.isdecimal() == parts[-1][-1].isdecimal():
            parts[-1] += character
        else:
            parts.append(character)
    # A number as its length and digits: a name may hold more digits than int() takes.
    return [(0, len(d := p.lstrip("0")), d) if p.isdecimal() else (1, 0, p) for p in parts]
