"""Reads Wavefront .obj with its .mtl.

A reader of our own, because Open3D's drops vertex colours. Read are polygons, texture coordinates, vertex colours after
the position, and of materials Kd, map_Kd and map_d; colours are taken as sRGB, as most viewers take them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float

from data.errors import UserError
from data.meshes.mesh import Material, Mesh, from_corners, srgb_to_linear
from data.meshes.textures import decode_picture, read_beside


def read(path: Path) -> Mesh:
    """All polygons of the file, as triangles."""
    places: list[list[str]] = []
    coordinates: list[list[str]] = []
    corners: list[tuple[int, int]] = []
    used: list[int] = []
    materials: dict[str, Material] = {}
    order = {"": 0}
    material = 0
    for line in logical_lines(path.read_text(encoding="utf-8", errors="replace")):
        word, _, rest = line.partition(" ")
        if word == "v":
            places.append(rest.split())
        elif word == "vt":
            coordinates.append(rest.split()[:2])
        elif word == "f":
            polygon = [corner_index(c, len(places), len(coordinates)) for c in rest.split()]
            for i in range(1, len(polygon) - 1):
                corners += [polygon[0], polygon[i], polygon[i + 1]]
                used.append(material)
        elif word == "usemtl":
            material = order.setdefault(rest.strip(), len(order))
        elif word == "mtllib":
            materials |= read_materials(path, rest.strip())
    if not corners:
        raise UserError(f"{path} has no triangles; export it as a triangle mesh.")
    xyz, colors = split_places(places)
    uv = np.array([[*c, "0"][:2] for c in coordinates] + [["0", "0"]], np.float64)
    uv[:-1, 1] = 1 - uv[:-1, 1]
    index = np.array(corners).reshape(-1, 3, 2)
    return from_corners(
        xyz[index[..., 0]],
        uv[index[..., 1]],
        colors[index[..., 0]],
        np.array(used),
        tuple(materials.get(name, Material()) for name in order),
    )


def logical_lines(text: str) -> list[str]:
    """Lines without comments and blanks; a backslash at the end joins the next line."""
    lines = (line.partition("#")[0].replace("\t", " ").strip() for line in text.replace("\\\n", " ").splitlines())
    return [line for line in lines if line]


def corner_index(corner: str, places: int, coordinates: int) -> tuple[int, int]:
    """Positions in the lists of `v` and `vt` (-1: no coordinate) of a corner such as 3/7/2 or -1/-1."""
    place, _, rest = corner.partition("/")
    coordinate = rest.partition("/")[0]
    return absolute(int(place), places), absolute(int(coordinate), coordinates) if coordinate else -1


def absolute(number: int, count: int) -> int:
    """A position from 0 of the file's number, which counts from 1 or, negative, from the end."""
    position = number - 1 if number > 0 else count + number
    if not 0 <= position < count:
        raise ValueError(f"a face names entry {number} of {count}")
    return position


def split_places(places: list[list[str]]) -> tuple[Float[np.ndarray, "n 3"], Float[np.ndarray, "n 3"]]:
    """Positions and linear colours of `v` lines: x y z, x y z w, or x y z r g b."""
    xyz = np.array([p[:3] for p in places], np.float64)
    if not all(len(p) >= 6 for p in places):
        return xyz, np.ones_like(xyz)
    colors = np.array([p[3:6] for p in places], np.float64)
    return xyz, srgb_to_linear(np.clip(colors / 255 if colors.max() > 1 else colors, 0, 1))


def read_materials(path: Path, name: str) -> dict[str, Material]:
    """Materials of the .mtl file `name` beside the mesh `path`."""
    text = read_beside(path, name).decode("utf-8", errors="replace")
    found: dict[str, dict[str, str]] = {}
    entries: dict[str, str] = {}
    for line in logical_lines(text):
        word, _, rest = line.partition(" ")
        if word == "newmtl":
            entries = found.setdefault(rest.strip(), {})
        else:
            entries[word.lower()] = rest.strip()
    base = path.parent / Path(name.replace("\\", "/")).parent / "_"
    return {key: material(base, entries) for key, entries in found.items()}


def material(base: Path, entries: dict[str, str]) -> Material:
    """A material from the lines of its .mtl block."""
    color = np.array(entries.get("kd", "1 1 1").split()[:3], np.float64)
    if color.shape != (3,):
        raise ValueError(f"Kd is {entries['kd']}, not three numbers")
    if "map_kd" not in entries:
        return Material(srgb_to_linear(np.clip(color, 0, 1)).astype(np.float32))
    texture = decode_picture(read_beside(base, texture_name(entries["map_kd"])))
    # Exporters write black beside a texture; nobody means black times the texture.
    color = srgb_to_linear(np.clip(color, 0, 1)) if color.any() else np.ones(3)
    if "map_d" not in entries:
        return Material(color.astype(np.float32), texture)
    coverage = decode_picture(read_beside(base, texture_name(entries["map_d"])))
    coverage = coverage[..., 3] if (coverage[..., 3] < 255).any() else coverage[..., 0]
    if coverage.shape != texture.shape[:2]:
        raise ValueError("map_d and map_Kd have different sizes")
    return Material(color.astype(np.float32), np.dstack([texture[..., :3], coverage]), 0.5)


def texture_name(words: str) -> str:
    """The file name of a map line, after options such as `-s 1 1 1`."""
    parts = words.split()
    start = 0
    for position, part in enumerate(parts[:-1]):
        if part.startswith("-") and part[1:].isalpha():
            start = position + 2
            while start < len(parts) - 1 and parts[start].replace(".", "").replace("-", "").isdigit():
                start += 1
    return " ".join(parts[start:])
