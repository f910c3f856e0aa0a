"""cameras.bin and images.bin of COLMAP 3.x and 4.x, read without trusting any count in them.

Since 3.12 the poses are kept in rigs.bin and frames.bin as well; images.bin still holds each photo's composed pose.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data.errors import UserError
from data.parsers.colmap_models import LENS_MODELS, Camera, Photo

MAX_NAME = 4096
BYTES_PER_POINT = 24  # x and y as doubles, the number of the 3D point


def read_cameras(path: Path) -> dict[int, Camera]:
    """All cameras by their number; raises UserError if the file is damaged or has an unknown lens model."""
    cameras = {}
    with _open(path) as file:
        (count,) = file.take("<Q")
        for _ in range(count):
            number, model, w, h = file.take("<IiQQ")
            if model not in LENS_MODELS:
                raise UserError(
                    f"{path} has a camera of the unknown lens model number {model}. Undistort the photos with COLMAP "
                    "and give the result."
                )
            lens = LENS_MODELS[model]
            cameras[number] = Camera(lens.name, (h, w), file.take(f"<{lens.count}d"))
    return cameras


def read_photos(path: Path) -> list[Photo]:
    """All photos with a pose; raises UserError if the file is damaged."""
    photos = []
    with _open(path) as file:
        (count,) = file.take("<Q")
        for _ in range(count):
            _, *pose, camera = file.take("<I7dI")
            name = file.take_name()
            (points,) = file.take("<Q")
            file.skip(points * BYTES_PER_POINT)
            photos.append(Photo(name, camera, tuple(pose[:4]), tuple(pose[4:])))
    return photos


class _CutOff(Exception):
    """The file ends before what it announces."""


class _Reader:
    def __init__(self, content: bytes | mmap.mmap) -> None:
        self.content, self.position = content, 0

    def take(self, layout: str) -> tuple[Any, ...]:
        start = self.position
        self.skip(struct.calcsize(layout))
        return struct.unpack_from(layout, self.content, start)

    def take_name(self) -> str:
        end = self.content.find(b"\0", self.position, self.position + MAX_NAME)
        if end < 0:
            raise _CutOff
        name = os.fsdecode(self.content[self.position : end])
        self.position = end + 1
        return name

    def skip(self, count: int) -> None:
        if count > len(self.content) - self.position:
            raise _CutOff
        self.position += count


@contextmanager
def _open(path: Path) -> Iterator[_Reader]:
    """A reader of a file that may be larger than memory."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    try:
        yield _Reader(content)
    except _CutOff as error:
        raise UserError(f"{path} is cut off or damaged. Export the model from COLMAP again.") from error
    finally:
        if isinstance(content, mmap.mmap):
            content.close()
