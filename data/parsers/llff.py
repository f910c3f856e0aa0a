"""poses_bounds.npy of LLFF: one row per photo, in the order of the photos' names.

A row holds a 3x5 matrix [R t hwf] and the nearest and farthest depth. R and t are camera-to-world; the columns of R
point down, right and backwards. Height, width and focal length are those of the full-size photos.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from data.errors import UserError
from data.files import DOWNSCALED, PHOTO_SUFFIXES
from data.frames import BadFrame, Capture, Listing, Numbers
from data.parsers.values import image_size, number

NAME = "LLFF"

FOLDERS = ("images", *(f"images_{n}" for n in DOWNSCALED))
MAX_BYTES = 64 * 2**20


def matches(path: Path) -> bool:
    """Whether this is a poses_bounds.npy or a folder with one."""
    return (path / "poses_bounds.npy").is_file() if path.is_dir() else path.name == "poses_bounds.npy"


def parse(path: Path) -> Capture:
    """Pair the rows with the photos of the first folder that has as many."""
    file = path / "poses_bounds.npy" if path.is_dir() else path
    rows = read_rows(file)
    counts = {}
    for name in FOLDERS:
        photos = _photos(file.parent / name)
        if len(photos) == len(rows):
            break
        if photos:
            counts[name] = len(photos)
    else:
        held = ", ".join(f"{name} holds {count}" for name, count in counts.items()) or "there is no folder images"
        raise UserError(
            f"{file} has {len(rows)} poses but {held}: poses and photos are paired by order, so no photo may be "
            "missing or added. Restore the folder."
        )
    notes = [] if name == "images" else [f"photos are taken from {name}, because images does not hold them"]
    notes.append("photos are paired with the poses by the order of their names")
    return Capture([_list_row(photo, row) for photo, row in zip(photos, rows, strict=True)], notes)


def read_rows(file: Path) -> Float64[np.ndarray, "n 17"]:
    """The rows of a .npy file, read without pickle and without trusting the size in its header."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise UserError(f"{file} has more than {MAX_BYTES // 2**20} MiB, which is no list of poses.")
        content = io.BytesIO(file.read_bytes())
        version = np.lib.format.read_magic(content)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, by_columns, dtype = read_header[version](content)
        if len(shape) != 2 or shape[1] != 17 or not 0 <= shape[0] <= MAX_BYTES or dtype.kind not in "fiu":
            raise UserError(f"{file} holds an array of shape {shape} and type {dtype}. It should be N x 17 numbers.")
        values = np.frombuffer(content.getbuffer(), dtype, shape[0] * shape[1], content.tell())
        return values.reshape(shape, order="F" if by_columns else "C").astype(np.float64)
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}).") from error
    except UserError:
        raise
    except Exception as error:  # numpy's reader of headers raises many types on damaged files
        raise UserError(f"{file} is no whole .npy file of numbers. Write it again.") from error


def _list_row(photo: Path, row: Float64[np.ndarray, " 17"]) -> Listing:
    matrix = row[:15].reshape(3, 5)
    down, right, back, position = matrix[:, :4].T
    numbers = {"h": float(matrix[0, 4]), "w": float(matrix[1, 4]), "f": float(matrix[2, 4])}
    try:
        focal, size = number([numbers], "f"), image_size(numbers)
    except BadFrame as problem:
        return Listing(photo.name, photo, problem=str(problem))
    c2w = np.stack([right, down, -back, position], axis=1)
    return Listing(photo.name, photo, c2w, Numbers(fx=focal, declared=size))


def _photos(folder: Path) -> list[Path]:
    """Photos in the order in which the programs that write this format sort them."""
    try:
        names = sorted(entry.name for entry in folder.iterdir() if entry.suffix.lower() in PHOTO_SUFFIXES)
    except OSError:
        return []
    return [folder / name for name in names if not name.startswith(".")]
