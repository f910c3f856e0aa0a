"""Small helpers on the way to the browser: pictures as bytes, failures as sentences."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from data import UserError


def png(pixels: np.ndarray) -> bytes:
    """A picture as PNG."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def jpeg(picture: Image.Image) -> bytes:
    """A small picture as JPEG."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=85)
    return file.getvalue()


def plain_message(error: Exception, what: str = "The picture could not be made") -> str:
    """What a person is told of a failure; what nobody expected is told without its details, which may name files."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return f"{what}: the server has too little memory. Use fewer photos or smaller pictures."
    return f"{what} ({type(error).__name__}). Try again; if that does not help, ask whoever runs this viewer."
