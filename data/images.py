"""Photos: checked by their header, decoded right, straightened, resized and cropped to the size a model wants."""

from __future__ import annotations

import importlib
import importlib.util
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from data.background import Color, composite
from data.distortion import undistort
from data.errors import UserError

if TYPE_CHECKING:
    from data.frames import Frame

EXIF_ORIENTATION = 0x0112


class PhotoError(UserError):
    """A photo that cannot be read; `reason` says why in a few words."""

    def __init__(self, path: Path, reason: str) -> None:
        """Name the photo and the reason."""
        super().__init__(f"{path} cannot be used: {reason}. Replace the photo or take it out of the capture.")
        self.reason = reason


@dataclass(frozen=True)
class PhotoHeader:
    """Stored size (h, w) in pixels and EXIF orientation (1 = upright, 5..8 = lying)."""

    size: tuple[int, int]
    orientation: int = 1

    @property
    def turned_size(self) -> tuple[int, int]:
        """The size (h, w) after a quarter turn."""
        return self.size[1], self.size[0]


def read_header(path: Path) -> PhotoHeader:
    """Size and orientation of a photo that is there to its end; raises PhotoError.

    A thousand photos must be quick to check, so the pixels are decoded only where the format has no end mark or the
    mark is absent. A file cut off anywhere is found by that; damage in the middle shows when the photo is decoded.
    """
    try:
        with _open(path) as photo:
            # Pillow decodes a whole PNG to look for EXIF behind the pixels, where hardly anybody puts it.
            has_exif = photo.format != "PNG" or "exif" in photo.info
            orientation = photo.getexif().get(EXIF_ORIENTATION, 1) if has_exif else 1
            header = PhotoHeader((photo.height, photo.width), orientation)
            if photo.mode == "F":
                raise PhotoError(path, "floating-point pixels; save it as an 8- or 16-bit picture")
            if not _has_end_mark(path, photo.format):
                photo.load()
    except PhotoError:
        raise
    except Exception as error:  # Pillow's decoders raise many types on damaged files
        raise PhotoError(path, _reason(path, error)) from error
    valid = isinstance(header.orientation, int) and 1 <= header.orientation <= 8
    return header if valid else PhotoHeader(header.size)


def decode(path: Path, orientation: int = 1, reduce: int = 1) -> Float[Tensor, "c h w"]:
    """Pixels in 0..1 as RGB, or as RGB and straight alpha where the photo has transparency.

    16-bit grey is divided by 257 (65535 is white); `orientation` is the EXIF turn to apply, 1 for none. `reduce`, which
    must divide the size, averages squares of so many pixels while decoding (16-bit grey stays as it is).
    """
    try:
        with _open(path) as photo:
            h, w = photo.height // reduce, photo.width // reduce
            if reduce > 1:
                photo.draft(None, (w, h))  # JPEG only: decodes fewer pixels in the first place
            photo.load()
            picture: Image.Image = photo
            if orientation != 1:
                picture = ImageOps.exif_transpose(photo)
            if picture.mode.startswith("I"):
                grey = np.asarray(picture).astype(np.float32).clip(0, 65535) / 65535
                pixels = np.repeat(grey[..., None], 3, axis=-1)
            else:
                picture = picture.convert("RGBA" if picture.has_transparency_data else "RGB")
                pixels = np.asarray(picture.reduce(max(photo.size) // max(w, h))).astype(np.float32) / 255
    except Exception as error:  # as above
        raise PhotoError(path, _reason(path, error)) from error
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


@dataclass(frozen=True)
class Fit:
    """How a photo of `photo_size` (h, w) becomes one of `image_size`: scaled until it covers that, then cut."""

    photo_size: tuple[int, int]
    image_size: tuple[int, int]

    @property
    def scaled(self) -> tuple[int, int]:
        """The smallest size with the photo's aspect that covers the image, to the nearest pixel."""
        (h, w), (new_h, new_w) = self.photo_size, self.image_size
        scale = max(new_h / h, new_w / w)
        return max(new_h, round(h * scale)), max(new_w, round(w * scale))

    @property
    def corner(self) -> tuple[int, int]:
        """Top and left of the centre crop in the scaled photo."""
        return (self.scaled[0] - self.image_size[0]) // 2, (self.scaled[1] - self.image_size[1]) // 2

    @property
    def whole_reduction(self) -> int:
        """The largest of 8, 4, 2, 1 that divides the photo and leaves it at least twice as large as `scaled`."""
        (h, w), (scaled_h, scaled_w) = self.photo_size, self.scaled
        fitting = [k for k in (8, 4, 2) if h % k == w % k == 0 and h >= 2 * k * scaled_h and w >= 2 * k * scaled_w]
        return fitting[0] if fitting else 1

    def intrinsics(self, intrinsics: tuple[float, float, float, float], zoom: float) -> list[float]:
        """fx, fy, cx, cy after undistortion with `zoom`, scaling and cropping."""
        fx, fy, cx, cy = intrinsics
        sy, sx = self.scaled[0] / self.photo_size[0], self.scaled[1] / self.photo_size[1]
        top, left = self.corner
        return [fx * zoom * sx, fy * zoom * sy, cx * sx - left, cy * sy - top]


def load_pixels(frame: Frame, image_size: tuple[int, int], background: Color) -> UInt8[Tensor, "4 h w"]:
    """RGB on the background, and alpha, of a frame undistorted and brought to a size (h, w); rounded to 8 bits.

    Laying straight alpha over the background before resizing equals resizing premultiplied colour, because both are
    linear and the background is one colour.
    """
    reduce = Fit(frame.image_size, image_size).whole_reduction
    return fit_pixels(decode(frame.path, frame.orientation, reduce), frame, image_size, background)


def fit_pixels(
    pixels: Float[Tensor, "c h w"], frame: Frame, image_size: tuple[int, int], background: Color
) -> UInt8[Tensor, "4 h2 w2"]:
    """As `load_pixels`, for the decoded pixels of a frame, which may be reduced already by `Fit.whole_reduction`."""
    fit = Fit(frame.image_size, image_size)
    reduce = fit.whole_reduction
    color, alpha = composite(pixels, background)
    pixels = torch.cat([color, alpha])
    (h, w), (scaled_h, scaled_w) = frame.image_size, fit.scaled
    if tuple(pixels.shape[-2:]) not in ((h, w), (h // reduce, w // reduce)):
        raise PhotoError(frame.path, "its size has changed since the capture was opened")
    if not frame.distortion.is_pinhole:
        # Straightening at twice the final size keeps a large photo cheap and the interpolation's blur small.
        work = (min(h, 2 * scaled_h), min(w, 2 * scaled_w))
        fx, fy, cx, cy = frame.intrinsics
        sy, sx = work[0] / h, work[1] / w
        pixels = resize(pixels, work)
        pixels = undistort(pixels, frame.distortion, (fx * sx, fy * sy, cx * sx, cy * sy), frame.zoom)
    (top, left), (h, w) = fit.corner, image_size
    pixels = resize(pixels, fit.scaled)[:, top : top + h, left : left + w]
    return (pixels * 255).round().to(torch.uint8)


def resize(image: Float[Tensor, "c h w"], image_size: tuple[int, int]) -> Float[Tensor, "c h2 w2"]:
    """Antialiased bicubic resize to (h, w) that keeps the picture's outer edges in place; values stay in 0..1."""
    if tuple(image.shape[-2:]) == image_size:
        return image
    resized = F.interpolate(image[None], image_size, mode="bicubic", antialias=True, align_corners=False)
    return resized[0].clamp(0, 1)


class PhotoCache:
    """The most recently used photos at their final size, up to a number of bytes; safe to share between threads."""

    def __init__(self, max_bytes: int = 256 * 2**20) -> None:
        """Keep at most `max_bytes` of pixels."""
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._photos: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()
        self._lock = Lock()

    def load(self, frame: Frame, image_size: tuple[int, int], background: Color) -> UInt8[Tensor, "4 h w"]:
        """As `load_pixels`, decoded only if the result is not at hand. Not to be written into."""
        key = _cache_key(frame, image_size, background)
        with self._lock:
            if key in self._photos:
                self._photos.move_to_end(key)
                return self._photos[key]
        photo = load_pixels(frame, image_size, background)
        with self._lock:
            if key not in self._photos:
                self._photos[key] = photo
                self.num_bytes += photo.numel()
            while self.num_bytes > self.max_bytes:
                self.num_bytes -= self._photos.popitem(last=False)[1].numel()
        return photo

    def holds(self, frame: Frame, image_size: tuple[int, int], background: Color) -> bool:
        """Whether a photo need not be decoded."""
        return _cache_key(frame, image_size, background) in self._photos

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process starts empty."""
        return {"max_bytes": self.max_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Start empty."""
        self.__init__(state["max_bytes"])


def _cache_key(frame: Frame, image_size: tuple[int, int], background: Color) -> tuple[Any, ...]:
    return (frame.path, frame.intrinsics, frame.distortion, frame.orientation, image_size, background)


def _open(path: Path) -> Image.Image:
    # Left to Pillow, the plug-ins are loaded by the first thread that needs one, and others then miss them.
    Image.init()
    try:
        return Image.open(path)
    except UnidentifiedImageError:
        if _kind(path) != "HEIC" or importlib.util.find_spec("pillow_heif") is None:
            raise
        importlib.import_module("pillow_heif").register_heif_opener()
        return Image.open(path)


def _has_end_mark(path: Path, kind: str | None) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 64))
        tail = file.read()
        file.seek(0)
        head = file.read(12)
    if kind == "PNG":
        return tail[-8:-4] == b"IEND"
    if kind in ("JPEG", "MPO"):
        return tail.rstrip(b"\0").endswith(b"\xff\xd9")
    if kind == "WEBP":
        return int.from_bytes(head[4:8], "little") + 8 <= size
    return False


def _kind(path: Path) -> str | None:
    """The name of a format that is known but not read."""
    with path.open("rb") as file:
        head = file.read(16)
    if head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"):
        return "HEIC"
    return "OpenEXR" if head[:4] == b"\x76\x2f\x31\x01" else None


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, PhotoError):
        return error.reason
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0) // 10**6} million pixels; make it smaller"
    if isinstance(error, FileNotFoundError):
        return "missing"
    if isinstance(error, PermissionError):
        return "no permission to read it"
    if isinstance(error, UnidentifiedImageError):
        if path.stat().st_size == 0:
            return "the file is empty"
        kind = _kind(path)
        if kind == "HEIC":
            return "HEIC pictures need the package pillow-heif (pip install pillow-heif)"
        if kind == "OpenEXR":
            return "OpenEXR pictures are not read; convert it to PNG"
        return "unreadable, not a picture in a known format"
    return f"unreadable or cut off ({str(error) or type(error).__name__})"
