"""Reads glTF 2.0 (.glb, .gltf).

A reader of our own, because Open3D's drops cut-out textures and vertex colours, which decide how a picture looks.
Not read: compressed geometry, skins, morph targets. Blended textures are cut out at half coverage; glass is opaque.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from jaxtyping import Float, Shaped

from data.errors import UserError
from data.meshes.mesh import Material, Mesh
from data.meshes.textures import decode_picture, read_beside

COMPONENTS = {5120: np.int8, 5121: np.uint8, 5122: np.int16, 5123: np.uint16, 5125: np.uint32, 5126: np.float32}
WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}
TRIANGLES = 4
COMPRESSION = ("KHR_draco_mesh_compression", "EXT_meshopt_compression")


def read(path: Path) -> Mesh:
    """All triangles of the file's default scene with node transforms applied; y is up."""
    return GltfFile(path).mesh()


class GltfFile:
    """One parsed file: its JSON, its buffers, and how to get arrays out of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        raw = path.read_bytes()
        self.chunk = b""
        if raw[:4] == b"glTF":
            raw, self.chunk = split_glb(raw)
        self.json: dict[str, Any] = json.loads(raw)
        packed = [name for name in COMPRESSION if name in self.json.get("extensionsRequired", [])]
        if packed:
            raise UserError(f"{path} is compressed ({packed[0]}); export it without compression.")
        self.buffers = [self.load(b.get("uri")) for b in self.json.get("buffers", [])]
        self.materials = self.json.get("materials", [])

    def mesh(self) -> Mesh:
        """All triangle primitives of all nodes, joined."""
        vertices, triangles, uv, colors, material_index = [], [], [], [], []
        count = 0
        for primitive, matrix in self.primitives():
            attributes = primitive["attributes"]
            place = self.array(attributes["POSITION"]).astype(np.float64) @ matrix[:3, :3].T + matrix[:3, 3]
            n = len(place)
            order = self.array(primitive["indices"])[:, 0] if "indices" in primitive else np.arange(n)
            corners = order[: len(order) // 3 * 3].reshape(-1, 3).astype(np.int64)
            if corners.size and corners.max() >= n:
                raise ValueError("a triangle names a vertex that is not there")
            material = primitive.get("material", len(self.materials))
            vertices.append(place.astype(np.float32))
            triangles.append(corners + count)
            uv.append(self.texture_coordinates(attributes, material, n))
            colors.append(self.array(attributes["COLOR_0"])[:, :3] if "COLOR_0" in attributes else np.ones((n, 3)))
            material_index.append(np.full(len(corners), material))
            count += n
        if not vertices:
            raise UserError(f"{self.path} has no triangles; export it as a triangle mesh.")
        joined = [np.concatenate(x) for x in (vertices, triangles, uv, colors, material_index)]
        joined[2:4] = [x.astype(np.float32) for x in joined[2:4]]
        return Mesh(*joined, materials=(*map(self.material, self.materials), Material()))

    def primitives(self) -> Iterator[tuple[dict[str, Any], Float[np.ndarray, "4 4"]]]:
        """Triangle primitives of the default scene with their node's transform."""
        nodes, scenes = self.json.get("nodes", []), self.json.get("scenes")
        roots = scenes[self.json.get("scene", 0)].get("nodes", []) if scenes else range(len(nodes))
        pending = [(index, np.eye(4)) for index in roots]
        seen: set[int] = set()
        while pending:
            index, parent = pending.pop(0)
            if index in seen:
                if scenes:
                    raise ValueError("its nodes do not form a tree")
                continue
            seen.add(index)
            matrix = parent @ node_matrix(nodes[index])
            pending += [(child, matrix) for child in nodes[index].get("children", [])]
            if "mesh" in nodes[index]:
                for primitive in self.json["meshes"][nodes[index]["mesh"]]["primitives"]:
                    if primitive.get("mode", TRIANGLES) == TRIANGLES:
                        yield primitive, matrix

    def array(self, index: int) -> Shaped[np.ndarray, "count width"]:
        """The values of an accessor; normalised integers become floats."""
        accessor = self.json["accessors"][index]
        if "bufferView" not in accessor or "sparse" in accessor:
            raise UserError(f"{self.path} has sparse or compressed geometry; export it without compression.")
        dtype, width = np.dtype(COMPONENTS[accessor["componentType"]]), WIDTHS[accessor["type"]]
        view = self.json["bufferViews"][accessor["bufferView"]]
        strides = (view.get("byteStride") or dtype.itemsize * width, dtype.itemsize)
        shape, start = (accessor["count"], width), accessor.get("byteOffset", 0)
        values = np.ndarray(shape, dtype, self.view(accessor["bufferView"]), start, strides)
        if accessor.get("normalized"):
            return np.maximum(values / np.float32(np.iinfo(dtype).max), -1)
        return values

    def view(self, index: int) -> bytes:
        """The bytes of a buffer view."""
        view = self.json["bufferViews"][index]
        start, size = view.get("byteOffset", 0), view["byteLength"]
        data = self.buffers[view["buffer"]][start : start + size]
        if start < 0 or len(data) != size:
            raise ValueError("the file is cut off")
        return data

    def load(self, uri: str | None) -> bytes:
        """Bytes of the .glb's own chunk (no uri), of a data uri, or of a file beside this one."""
        if uri is None:
            return self.chunk
        if uri.startswith("data:"):
            return base64.b64decode(uri.partition(",")[2])
        return read_beside(self.path, unquote(uri))

    def texture_coordinates(self, attributes: dict[str, int], material: int, n: int) -> Float[np.ndarray, "n 2"]:
        """The coordinates that a material's texture wants, after KHR_texture_transform; zeros if there are none."""
        slot = base_color(self.materials[material])[1] if material < len(self.materials) else {}
        move = slot.get("extensions", {}).get("KHR_texture_transform", {})
        name = f"TEXCOORD_{move.get('texCoord', slot.get('texCoord', 0))}"
        if name not in attributes:
            return np.zeros((n, 2))
        u, v = (self.array(attributes[name]) * np.asarray(move.get("scale", [1, 1]))).T
        turn = move.get("rotation", 0)
        turned = [u * math.cos(turn) + v * math.sin(turn), v * math.cos(turn) - u * math.sin(turn)]
        return np.stack(turned, axis=1) + np.asarray(move.get("offset", [0, 0]))

    def material(self, material: dict[str, Any]) -> Material:
        """Base colour and base-colour texture of a material."""
        color, slot = base_color(material)
        texture = None
        if slot:
            source = self.json["images"][texture_source(self.json["textures"][slot["index"]])]
            data = self.view(source["bufferView"]) if "bufferView" in source else self.load(source["uri"])
            texture = decode_picture(data)
        cutoffs = {"MASK": material.get("alphaCutoff", 0.5), "BLEND": 0.5}
        cutoff = cutoffs.get(material.get("alphaMode", "OPAQUE"))
        if cutoff is not None:
            # The factor's alpha scales the texture's; a material that is clear everywhere is taken as glass: opaque.
            cutoff = float(cutoff) / color[3] if color[3] > cutoff else None
        return Material(np.asarray(color[:3], np.float32), texture, cutoff)


def base_color(material: dict[str, Any]) -> tuple[list[float], dict[str, Any]]:
    """Linear RGBA factor and texture slot ({} if none), also of the older specular-glossiness materials."""
    older = material.get("extensions", {}).get("KHR_materials_pbrSpecularGlossiness")
    if older is not None:
        return older.get("diffuseFactor", [1, 1, 1, 1]), older.get("diffuseTexture", {})
    base = material.get("pbrMetallicRoughness", {})
    return base.get("baseColorFactor", [1, 1, 1, 1]), base.get("baseColorTexture", {})


def texture_source(texture: dict[str, Any]) -> int:
    """The picture of a texture, also when it is named by the WebP extension."""
    return texture.get("extensions", {}).get("EXT_texture_webp", texture)["source"]


def split_glb(raw: bytes) -> tuple[bytes, bytes]:
    """The JSON chunk and the binary chunk of a .glb."""
    (size,) = struct.unpack_from("<I", raw, 12)
    start = 20 + size
    if len(raw) < start:
        raise ValueError("the file is cut off")
    if len(raw) < start + 8:
        return raw[20:start], b""
    (size,) = struct.unpack_from("<I", raw, start)
    return raw[20:start], raw[start + 8 : start + 8 + size]


def node_matrix(node: dict[str, Any]) -> Float[np.ndarray, "4 4"]:
    """Transform of a node: its matrix (column-major in the file), or translation * rotation * scale."""
    if "matrix" in node:
        return np.array(node["matrix"], np.float64).reshape(4, 4).T
    x, y, z, w = node.get("rotation", [0, 0, 0, 1])
    rotation = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    matrix = np.eye(4)
    matrix[:3, :3] = np.array(rotation, np.float64) * np.asarray(node.get("scale", [1, 1, 1]), np.float64)
    matrix[:3, 3] = node.get("translation", [0, 0, 0])
    return matrix
