"""Blender-style synthetic sets (as in the NeRF paper): transforms_{train,val,test}.json, each a transforms file."""

from __future__ import annotations

from pathlib import Path

from data.files import PhotoFinder
from data.frames import Capture
from data.parsers.transforms import list_transforms, notes_on
from data.parsers.values import read_object

NAME = "Blender"

SPLITS = ("train", "val", "test")


def matches(path: Path) -> bool:
    """Whether the folder has a training file, or any of the files and no transforms.json."""
    if not path.is_dir():
        return False
    present = [split for split in SPLITS if (path / f"transforms_{split}.json").is_file()]
    return "train" in present or (bool(present) and not (path / "transforms.json").is_file())


def parse(path: Path) -> Capture:
    """List the frames of all files that are there; the files make the split."""
    finder = PhotoFinder(path)
    capture = Capture([])
    for split in SPLITS:
        file = path / f"transforms_{split}.json"
        if file.is_file():
            content = read_object(file)
            listings = list_transforms(content, finder, lambda _, split=split: split)
            capture.listings.extend(listings)
            capture.notes.extend(note for note in notes_on(listings, content) if note not in capture.notes)
    return capture
