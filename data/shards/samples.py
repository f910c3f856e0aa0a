"""One capture in a shard: KEY.json with its cameras, and KEY.0000.png and so on with its photos, of one size.

A shard may come from anyone. Whatever is read out of one is checked, nothing in it is ever run, and none of its names
becomes the name of a file.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from data.background import Color, lift_off
from data.errors import UserError
from data.frames import BadFrame, Listing, Numbers
from data.images import Fit
from data.parsers.values import matrix, number, text

if TYPE_CHECKING:
    from data.scene import Scene

NAME = "WebDataset shards"
PHOTO_KINDS = ("PNG", "JPEG", "WEBP")
MEMBER = re.compile(r"([A-Za-z0-9_-]{1,100})\.(json|[0-9]{1,6}\.(?:png|jpg|webp))")
MAX_SIDE = 4096
SPLITS = ("train", "val", "test")


class Packed(NamedTuple):
    """Cameras of a sample as listed, each with the photo's name in the sample."""

    name: str
    image_size: tuple[int, int]
    listings: list[Listing]
    photos: list[str]


def pack_scene(scene: Scene, image_size: tuple[int, int], quality: int | None = None) -> dict[str, bytes]:
    """The content of a sample: all photos at a size (h, w), and their cameras in the capture's own world.

    Photos are PNG, or WebP of a quality (1..100).
    """
    kind = "png" if quality is None else "webp"
    sample: dict[str, bytes] = {}
    entries: list[dict[str, Any]] = []
    splits = {i: name for name, indices in scene.split.items() for i in indices}
    for index, frame in enumerate(scene.frames):
        photo = f"{index:04d}.{kind}"
        sample[photo] = _encode(scene.cache.load(frame, image_size, scene.background), scene.background, quality)
        fx, fy, cx, cy = Fit(frame.image_size, image_size).intrinsics(frame.intrinsics, frame.zoom)
        entry = {"name": frame.name, "photo": photo, "fx": fx, "fy": fy, "cx": cx, "cy": cy, "c2w": frame.c2w.tolist()}
        entries.append(entry | ({"split": splits[index]} if index in splits else {}))
    h, w = image_size
    content = {"name": scene.name, "h": h, "w": w, "frames": entries}
    return {"json": json.dumps(content).encode(), **sample}


def list_packed(sample: Mapping[str, Any], place: str) -> Packed:
    """The cameras of a sample of which nothing is known yet; `place` names it for people."""
    try:
        content = json.loads(sample["json"])
        size, entries = (content["h"], content["w"]), content["frames"]
        name = content["name"]
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{place} has no readable cameras. Make the shards again with nvs convert.") from error
    sound = isinstance(entries, list) and isinstance(name, str) and all(type(n) is int for n in size)
    if not sound or not 1 <= min(size) <= max(size) <= MAX_SIDE:
        raise UserError(f"{place} has no list of frames, no name or no size. Make the shards again with nvs convert.")
    listings, photos = [], []
    for index, entry in enumerate(entries):
        listing, photo = _list(index, entry, size, sample)
        listings.append(listing)
        photos.append(photo)
    return Packed(printable(name), size, listings, photos)


def printable(text: str) -> str:
    """A name from a shard for people: short, in one line, and nothing that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text[:200])


def _list(index: int, entry: Any, size: tuple[int, int], sample: Mapping[str, Any]) -> tuple[Listing, str]:
    name, photo = f"frame number {index}", ""
    try:
        if not isinstance(entry, Mapping):
            raise BadFrame("not an object")
        name, photo = printable(text(entry, "name")), text(entry, "photo")
        if photo not in sample or not MEMBER.fullmatch(f"x.{photo}"):
            raise BadFrame("missing")
        numbers = Numbers(*(number([entry], key) for key in ("fx", "fy", "cx", "cy")), declared=size)
        split = entry.get("split")
        return Listing(name, None, matrix(entry, "c2w"), numbers, split if split in SPLITS else None), photo
    except BadFrame as problem:
        return Listing(name, None, problem=str(problem)), photo


def _encode(photo: UInt8[Tensor, "4 h w"], background: Color, quality: int | None) -> bytes:
    """Colour that was laid over a background, and alpha, as a file with straight colour."""
    pixels = photo[:3]
    if (photo[3] < 255).any():
        pixels = (lift_off(photo.float() / 255, background) * 255).round().byte()
    buffer = io.BytesIO()
    picture = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    if quality is None:
        picture.save(buffer, format="PNG")
    else:
        picture.save(buffer, format="WEBP", quality=quality)
    return buffer.getvalue()
