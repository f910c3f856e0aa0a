"""Reads .ply, text or binary, with vertex colours, face colours or textures.

A reader of our own, because Open3D's ignores textures and crashes on broken files. Colours are taken as sRGB.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, Shaped

from data.errors import UserError
from data.meshes.mesh import Material, Mesh, from_corners, srgb_to_linear
from data.meshes.textures import decode_picture, read_beside

TYPES = {
    **{"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"},
    **{"int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4"},
    **{"float": "f4", "double": "f8", "float32": "f4", "float64": "f8"},
}
COLOR_NAMES = (("red", "green", "blue"), ("r", "g", "b"), ("diffuse_red", "diffuse_green", "diffuse_blue"))
UV_NAMES = (("s", "t"), ("u", "v"), ("texture_u", "texture_v"), ("texture_s", "texture_t"))
ALL_COLOR_NAMES = {name for names in COLOR_NAMES for name in names}


class Property(NamedTuple):
    """A column: its name and number type; lists also have the type of their length."""

    name: str
    dtype: str
    length_dtype: str | None = None


class Element(NamedTuple):
    """A table of the file."""

    name: str
    count: int
    properties: list[Property]


class Header(NamedTuple):
    """What stands before the numbers."""

    text: bool
    byte_order: str
    elements: list[Element]
    textures: list[str]


def read(path: Path) -> Mesh:
    """All faces of the file, as triangles."""
    raw = path.read_bytes()
    header, body = split_header(raw)
    tables = read_tables(header, body)
    vertex, face = tables.get("vertex", {}), tables.get("face", {})
    polygons = face.get("vertex_indices", face.get("vertex_index", []))
    if len(polygons) == 0:
        raise UserError(f"{path} has no triangles; export it as a triangle mesh, not as points.")
    owner, corner = fan(np.array([len(p) for p in polygons]))
    index = pick(polygons, owner, corner).astype(np.int64)
    xyz = np.stack([vertex[axis] for axis in "xyz"], axis=1).astype(np.float64)
    if index.size and (index.min() < 0 or index.max() >= len(xyz)):
        raise ValueError("a face names a vertex that is not there")
    colors = np.ones((*index.shape, 3))
    if (own := linear_colors(vertex)) is not None:
        colors = own[index]
    elif (own := linear_colors(face)) is not None:
        colors = np.repeat(own[owner][:, None], 3, axis=1)
    materials = tuple(Material(texture=decode_picture(read_beside(path, name))) for name in header.textures)
    number = np.asarray(face.get("texnumber", np.zeros(len(polygons))))[owner].astype(np.int64)
    if materials and number.size and (number.min() < 0 or number.max() >= len(materials)):
        raise ValueError("a face names a texture that is not there")
    uv = corner_uv(vertex, face, index, owner, corner)
    return from_corners(xyz[index], uv, colors, number if materials else number * 0, materials or (Material(),))


def split_header(raw: bytes) -> tuple[Header, bytes]:
    """The parsed header, and the bytes after it."""
    head, found, body = raw.partition(b"end_header")
    if not raw.startswith(b"ply") or not found:
        raise ValueError("it does not start with a PLY header")
    elements: list[Element] = []
    textures: list[str] = []
    form = "ascii"
    for words in (line.split() for line in head.decode("latin-1").splitlines()):
        if words[:1] == ["format"]:
            form = words[1]
        elif words[:2] == ["comment", "TextureFile"]:
            textures.append(" ".join(words[2:]))
        elif words[:1] == ["element"]:
            elements.append(Element(words[1], int(words[2]), []))
        elif words[:2] == ["property", "list"]:
            elements[-1].properties.append(Property(words[4], TYPES[words[3]], TYPES[words[2]]))
        elif words[:1] == ["property"]:
            elements[-1].properties.append(Property(words[2], TYPES[words[1]]))
    order = ">" if form == "binary_big_endian" else "<"
    return Header(form == "ascii", order, elements, textures), body.partition(b"\n")[2]


def read_tables(header: Header, body: bytes) -> dict[str, dict[str, Any]]:
    """Columns by table and name: arrays [rows], lists as arrays [rows length] or, if lengths differ, as a list."""
    if header.text:
        # Numbers in text become a binary body in which every number, lengths too, has 8 bytes.
        body = np.array(body.split(), "<f8").tobytes()
    at = 0
    tables = {}
    for element in header.elements:
        if element.count < 0:
            raise ValueError("a table has a negative number of rows")
        columns, at = read_table(header, element, body, at)
        for name, dtype, _ in element.properties:
            # Integer colours are shares of the largest value of the type that the header names.
            if dtype in ("u1", "u2") and name in ALL_COLOR_NAMES:
                columns[name] = columns[name] / np.iinfo(dtype).max
        tables[element.name] = columns
    return tables


def read_table(header: Header, element: Element, body: bytes, at: int) -> tuple[dict[str, Any], int]:
    """Columns of the table that starts at byte `at`, and where it ends."""
    if element.count == 0 or not element.properties:
        return {p.name: np.zeros(0) for p in element.properties}, at

    def number(dtype: str) -> np.dtype:
        return np.dtype("<f8" if header.text else header.byte_order + dtype)

    first, _ = read_row(element.properties, number, body, at)
    fields: list[tuple] = []
    for (name, dtype, length_dtype), value in zip(element.properties, first, strict=True):
        if length_dtype is None:
            fields.append((name, number(dtype)))
        else:
            fields += [(f"{name} length", number(length_dtype)), (name, number(dtype), (len(value),))]
    row = np.dtype(fields)
    lists = [(p.name, len(v)) for p, v in zip(element.properties, first, strict=True) if p.length_dtype is not None]
    end = at + element.count * row.itemsize
    if end <= len(body) or not lists:
        rows = np.frombuffer(body, row, element.count, at)
        if all((rows[f"{name} length"] == length).all() for name, length in lists):
            return {p.name: rows[p.name] for p in element.properties}, end
    columns: list[list] = [[] for _ in element.properties]
    for _ in range(element.count):
        values, at = read_row(element.properties, number, body, at)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    pairs = zip(element.properties, columns, strict=True)
    return {p.name: c if p.length_dtype else np.array(c) for p, c in pairs}, at


def read_row(
    properties: list[Property], number: Callable[[str], np.dtype], body: bytes, at: int
) -> tuple[list[Any], int]:
    """The values of one row, lists as arrays, and where it ends."""
    values: list[Any] = []
    for _, dtype, length_dtype in properties:
        count = 1
        if length_dtype is not None:
            count = int(np.frombuffer(body, number(length_dtype), 1, at)[0])
            at += number(length_dtype).itemsize
            if count < 0:
                raise ValueError("a list has a negative length")
        size = count * number(dtype).itemsize
        value = np.frombuffer(body[at : at + size], number(dtype))
        if len(value) != count:
            raise ValueError("the file is cut off")
        at += size
        values.append(value[0] if length_dtype is None else value)
    return values, at


def fan(lengths: Int[np.ndarray, " f"]) -> tuple[Int[np.ndarray, " t"], Int[np.ndarray, "t 3"]]:
    """Polygons as triangle fans: the polygon of each triangle, and which of its corners the triangle has."""
    counts = np.maximum(lengths - 2, 0)
    owner = np.repeat(np.arange(len(lengths)), counts)
    step = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    return owner, np.stack([np.zeros_like(step), step + 1, step + 2], axis=1)


def pick(lists: Any, owner: Int[np.ndarray, " t"], position: Int[np.ndarray, "t 3"]) -> Shaped[np.ndarray, "t 3"]:
    """Entries at `position` of the lists of `owner`."""
    starts = np.cumsum([0, *(len(x) for x in lists)])[:-1]
    flat = lists.reshape(-1) if isinstance(lists, np.ndarray) else np.concatenate(lists)
    return flat[starts[owner][:, None] + position]


def linear_colors(table: dict[str, Any]) -> Float[np.ndarray, "n 3"] | None:
    """Linear colours of a table, None if it has none."""
    for names in COLOR_NAMES:
        if all(name in table for name in names):
            return srgb_to_linear(np.clip(np.stack([table[name] for name in names], axis=1).astype(np.float64), 0, 1))
    return None


def corner_uv(
    vertex: dict[str, Any],
    face: dict[str, Any],
    index: Int[np.ndarray, "t 3"],
    owner: Int[np.ndarray, " t"],
    corner: Int[np.ndarray, "t 3"],
) -> Float[np.ndarray, "t 3 2"]:
    """Texture coordinates with v down, from the faces' own lists or from the vertices; zeros if there are none."""
    uv = np.zeros((*index.shape, 2))
    if "texcoord" in face:
        lists = face["texcoord"]
        lengths = np.array([len(x) for x in lists])
        if (lengths[owner] < 2 * corner.max(axis=1, initial=0) + 2).any():
            raise ValueError("a face has too few texture coordinates")
        uv = np.stack([pick(lists, owner, 2 * corner), pick(lists, owner, 2 * corner + 1)], axis=2).astype(np.float64)
    else:
        for names in UV_NAMES:
            if all(name in vertex for name in names):
                uv = np.stack([vertex[name] for name in names], axis=1).astype(np.float64)[index]
                break
    return np.stack([uv[..., 0], 1 - uv[..., 1]], axis=2)
