"""What all formats with a list of frames share: an entry becomes a listing, and a bad entry spoils only itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from data.files import PhotoFinder
from data.frames import BadFrame, Listing, Numbers
from data.parsers.values import text

ReadFrame = Callable[[Mapping[str, Any]], tuple[np.ndarray, Numbers]]


def list_frames(
    frames: Sequence[Any],
    finder: PhotoFinder,
    path_key: str,
    read: ReadFrame,
    split: Callable[[str], str | None] = lambda path: None,
) -> list[Listing]:
    """Listings of all entries.

    `read` gives an entry's camera-to-world matrix (OpenCV axes) and numbers, and raises BadFrame where it cannot;
    `path_key` holds the path of the photo; `split` tells "train", "val" or "test" from that path.
    """
    return [_list_frame(i, frame, finder, path_key, read, split) for i, frame in enumerate(frames)]


def shorten_names(listings: list[Listing]) -> list[Listing]:
    """Name photos relative to the folder that they all lie in."""
    named = [listing for listing in listings if listing.file or not listing.problem]
    parents = {PurePosixPath(listing.name).parent for listing in named}
    if len(parents) != 1 or parents == {PurePosixPath(".")}:
        return listings
    parent = parents.pop()
    short = {x.name: PurePosixPath(x.name).relative_to(parent).as_posix() for x in named}
    return [replace(x, name=short.get(x.name, x.name)) for x in listings]


def _list_frame(
    index: int,
    frame: Any,
    finder: PhotoFinder,
    path_key: str,
    read: ReadFrame,
    split: Callable[[str], str | None],
) -> Listing:
    name = f"frame number {index}"
    try:
        if not isinstance(frame, Mapping):
            raise BadFrame("not an object")
        path = text(frame, path_key)
        name = PurePosixPath(path.replace("\\", "/")).as_posix()
        c2w, numbers = read(frame)
    except BadFrame as problem:
        return Listing(name, None, problem=str(problem))
    found = finder.find(path)
    return Listing(
        name, found.path if found else None, c2w, numbers, split(path), downscale=found.downscale if found else 1
    )
