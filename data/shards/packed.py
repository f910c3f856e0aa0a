"""A capture out of a shard as a scene, whose photos stay in memory as they were packed."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from data.background import Color
from data.errors import UserError
from data.frames import BadFrame, Frame, make_frame
from data.images import PhotoCache, PhotoError, PhotoHeader, fit_pixels
from data.normalization import fit
from data.scene import Scene
from data.shards.samples import NAME, PHOTO_KINDS, SPLITS, list_packed


def open_packed(sample: Mapping[str, Any], place: str, background: Color) -> Scene:
    """A scene whose photos stay in memory as they are in the sample, decoded when they are loaded."""
    packed = list_packed(sample, place)
    frames, splits, photos, left_out = [], [], {}, []
    for index, (listing, photo) in enumerate(zip(packed.listings, packed.photos, strict=True)):
        path = Path(place, f"{index:04d}")
        try:
            if listing.problem:
                raise BadFrame(listing.problem)
            frames.append(make_frame(replace(listing, file=path), PhotoHeader(packed.image_size)).frame)
        except BadFrame as problem:
            left_out.append(f"{listing.name} ({problem})")
            continue
        splits.append(listing.split)
        photos[path] = sample[photo]
    if not frames:
        raise UserError(f"{place} has no usable frame: {', '.join(left_out[:3]) or 'it lists none'}.")
    split = {name: [i for i, s in enumerate(splits) if s == name] for name in SPLITS if name in splits}
    return Scene(
        name=packed.name,
        path=Path(place),
        format=NAME,
        frames=tuple(frames),
        split=split,
        background=background,
        world_to_scene=fit(np.stack([f.c2w for f in frames]), "focus"),
        normalization="focus",
        warnings=tuple(left_out),
        cache=PackedPhotos(photos),
    )


class PackedPhotos(PhotoCache):
    """The encoded photos of one scene in memory, under the paths of its frames."""

    def __init__(self, photos: Mapping[Path, bytes]) -> None:
        """Hold these photos; nothing decoded is kept."""
        super().__init__(0)
        self.photos = dict(photos)

    def keep(self, paths: set[Path]) -> None:
        """Forget all other photos."""
        self.photos = {path: photo for path, photo in self.photos.items() if path in paths}

    def load(self, frame: Frame, image_size: tuple[int, int], background: Color) -> UInt8[Tensor, "4 h w"]:
        """Decode a photo and bring it to a size (h, w)."""
        return fit_pixels(_decode(self.photos[frame.path], frame), frame, image_size, background)

    def __getstate__(self) -> dict[str, Any]:
        """All photos, other than a cache of files."""
        return {"photos": self.photos}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take them over."""
        self.__init__(state["photos"])


def _decode(content: bytes, frame: Frame) -> Float[Tensor, "c h w"]:
    """RGB, or RGB and straight alpha, in 0..1; the size must be the one that the cameras belong to."""
    try:
        with Image.open(io.BytesIO(content), formats=PHOTO_KINDS) as picture:
            if (picture.height, picture.width) != frame.image_size:
                raise PhotoError(frame.path, f"it has {picture.width}x{picture.height} pixels, not its stated size")
            plain = picture.convert("RGBA" if picture.has_transparency_data else "RGB")
            pixels = np.asarray(plain).astype(np.float32) / 255
    except PhotoError:
        raise
    except Exception as error:  # Pillow's decoders raise many types on damaged files
        raise PhotoError(frame.path, "unreadable or cut off") from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
