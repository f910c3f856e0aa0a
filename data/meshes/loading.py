"""Finds and reads mesh files of any supported format."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from data.errors import UserError
from data.meshes import gltf, obj, ply
from data.meshes.mesh import Mesh, cross_products

Up = Literal["auto", "y", "z"]
READERS = {".glb": gltf.read, ".gltf": gltf.read, ".obj": obj.read, ".ply": ply.read}
MESH_SUFFIXES = tuple(READERS)
Y_UP = (".glb", ".gltf", ".obj")
BROKEN = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    struct.error,
    OSError,
    RecursionError,
    MemoryError,
    SyntaxError,
    Image.DecompressionBombError,
)


def load_mesh(path: Path, up: Up = "auto") -> Mesh:
    """Read a mesh, z up: `up` names the file's own vertical axis ("auto": y, as in most files, but z for .ply)."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise UserError(f"{path} is not a mesh format that can be read; give one of {', '.join(READERS)}.")
    if not path.is_file():
        raise UserError(f"There is no mesh file {path}; check the path.")
    try:
        # Numbers out of range turn into infinity here and are refused below.
        with np.errstate(all="ignore"):
            mesh = reader(path)
    except BROKEN as error:
        raise UserError(f"{path} cannot be read as a mesh ({one_line(error)}); export it again.") from error
    mesh = drop_flat_triangles(mesh, path)
    turn = up == "y" or (up == "auto" and path.suffix.lower() in Y_UP)
    return mesh.turn_y_up_to_z_up() if turn else mesh


def drop_flat_triangles(mesh: Mesh, path: Path) -> Mesh:
    """The mesh without triangles of no area; refuses a mesh that has no others or numbers that are not finite."""
    if len(mesh.triangles) == 0:
        raise UserError(f"{path} has no triangles; export it as a triangle mesh.")
    if mesh.triangles.min() < 0 or mesh.triangles.max() >= len(mesh.vertices):
        raise UserError(f"{path} is broken: a triangle names a vertex that is not there; export it again.")
    used = mesh.triangles.reshape(-1)
    # Far beyond 1e15 the squares below leave the range of 32-bit floats.
    if not (np.abs(mesh.vertices[used]) < 1e15).all():
        raise UserError(f"{path} is broken: a vertex is not a finite number of sensible size; export it again.")
    if not (np.isfinite(mesh.uv[used]).all() and np.isfinite(mesh.colors[used]).all()):
        raise UserError(f"{path} is broken: a texture coordinate or colour is not finite; export it again.")
    corners = mesh.vertices[mesh.triangles].astype(np.float64)
    extent = np.ptp(corners.reshape(-1, 3), axis=0).max()
    solid = np.linalg.norm(cross_products(mesh), axis=1) > 1e-14 * extent**2
    if not solid.any():
        raise UserError(f"{path} has only triangles without area; export it again.")
    return replace(mesh, triangles=mesh.triangles[solid], material_index=mesh.material_index[solid])


def find_meshes(inputs: Sequence[str]) -> dict[str, Path]:
    """Mesh files by unique name: files as given, folders searched, .txt lists read (one path a line)."""
    found: dict[str, Path] = {}
    for entry in inputs:
        for name, path in expand(Path(entry)):
            if name in found and found[name] != path:
                name = path.name.replace(".", "_")
            if name in found and found[name] != path:
                raise UserError(f"{found[name]} and {path} would get the same name {name}; prepare them one by one.")
            found[name] = path
    return found


def expand(path: Path) -> list[tuple[str, Path]]:
    """Names and paths of the meshes that one input stands for."""
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix.lower() in READERS and p.is_file())
        if not files:
            raise UserError(f"{path} has no mesh files in it; looked for {', '.join(READERS)}.")
        return [("-".join(p.relative_to(path).with_suffix("").parts), p) for p in files]
    if path.suffix.lower() == ".txt":
        if not path.is_file():
            raise UserError(f"There is no list file {path}; check the path.")
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not a text file; list one mesh path a line.") from error
        for line in lines:
            if line and not line.startswith("#") and Path(line).suffix.lower() not in READERS:
                raise UserError(
                    f"{path} lists {line[:60]!r}, which is no mesh; list a {', '.join(READERS)} file a line."
                )
        meshes = [(Path(line).stem, path.parent / line) for line in lines if line and not line.startswith("#")]
        if not meshes:
            raise UserError(f"{path} names no meshes; list one mesh path a line.")
        return meshes
    if path.suffix.lower() not in READERS:
        raise UserError(f"{path} is not a mesh format that can be read; give one of {', '.join(READERS)}.")
    if not path.is_file():
        raise UserError(f"There is no mesh file {path}; check the path.")
    return [(path.stem, path)]


def one_line(error: BaseException) -> str:
    """What an exception says, short and on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyError):
        text = f"{text} is missing or not known"
    return text if len(text) <= 160 else text[:157] + "..."
