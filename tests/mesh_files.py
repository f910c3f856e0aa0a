"""Small mesh files for tests."""

from __future__ import annotations

import base64
import io
import json
import struct
from pathlib import Path

import numpy as np
from PIL import Image

SQUARE = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]], np.float32)
SQUARE_TRIANGLES = np.array([[0, 1, 2], [0, 2, 3]], np.uint16)
SQUARE_UV = np.array([[0, 1], [1, 1], [1, 0], [0, 0]], np.float32)


def quadrants(size: int = 64) -> Image.Image:
    """Red, green over blue, yellow."""
    pixels = np.zeros((size, size, 3), np.uint8)
    half = size // 2
    pixels[:half, :half], pixels[:half, half:] = (200, 30, 30), (30, 200, 30)
    pixels[half:, :half], pixels[half:, half:] = (30, 30, 200), (200, 200, 30)
    return Image.fromarray(pixels)


def png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def gltf(material: dict | None = None, picture: bytes | None = None, node: dict | None = None, **attributes) -> dict:
    """A square as glTF with everything in data uris."""
    chunks = [SQUARE_TRIANGLES.tobytes(), SQUARE.tobytes(), *(v.tobytes() for v in attributes.values())]
    accessors = [
        {"bufferView": 0, "componentType": 5123, "count": 6, "type": "SCALAR"},
        {"bufferView": 1, "componentType": 5126, "count": 4, "type": "VEC3"},
    ]
    for i, values in enumerate(attributes.values()):
        kind = {np.dtype("f4"): 5126, np.dtype("u1"): 5121}[values.dtype]
        shape = f"VEC{values.shape[1]}"
        accessors.append(
            {"bufferView": i + 2, "componentType": kind, "count": 4, "type": shape, "normalized": kind == 5121}
        )
    names = {"POSITION": 1, **{name: i + 2 for i, name in enumerate(attributes)}}
    starts = np.cumsum([0, *map(len, chunks)])
    views = [{"buffer": 0, "byteOffset": int(s), "byteLength": len(c)} for s, c in zip(starts, chunks, strict=False)]
    uri = data_uri(b"".join(chunks))
    primitive = {"attributes": names, "indices": 0}
    content = {
        "asset": {"version": "2.0"},
        "nodes": [{"mesh": 0, **(node or {})}],
        "meshes": [{"primitives": [primitive]}],
        "accessors": accessors,
        "bufferViews": views,
        "buffers": [{"byteLength": int(starts[-1]), "uri": uri}],
    }
    if material is not None:
        content |= {"materials": [material]}
        primitive["material"] = 0
    if picture is not None:
        content |= {
            "images": [{"uri": "data:image/png;base64," + base64.b64encode(picture).decode()}],
            "textures": [{"source": 0}],
        }
    return content


def data_uri(content: bytes) -> str:
    return "data:application/octet-stream;base64," + base64.b64encode(content).decode()


def write_gltf(path: Path, content: dict) -> Path:
    path.write_text(json.dumps(content))
    return path


def write_glb(path: Path, content: dict) -> Path:
    """The same with the buffer as the binary chunk."""
    binary = base64.b64decode(content["buffers"][0].pop("uri").partition(",")[2])
    text = json.dumps(content).encode()
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<I4s", len(text), b"JSON") + text + struct.pack("<I4s", len(binary), b"BIN\0") + binary
    path.write_bytes(struct.pack("<4sII", b"glTF", 2, 12 + len(chunks)) + chunks)
    return path


def write_obj(folder: Path) -> Path:
    quadrants().save(folder / "picture one.png")
    (folder / "a.mtl").write_text("newmtl painted\nmap_Kd -s 1 1 1 picture one.png\nnewmtl plain\nKd 0.5 0.25 0.75\n")
    (folder / "a.obj").write_text(
        "mtllib a.mtl # materials\nv -1 -1 0\nv 1 -1 0\nv 1 1 0\nv -1 1 0\nvt 0 0\nvt 1 0\nvt 1 1\nvt 0 1\n"
        "usemtl painted\nf 1/1 2/2 3/3 4/4\nv 0 0 1\nvn 0 0 1\nusemtl plain\nf -5//1 -4//1 \\\n -1//1\n"
    )
    return folder / "a.obj"


def ply_text(body_format: str, faces: list[list[int]], texture: bool = False) -> bytes:
    """A coloured square (or a textured one) in any of PLY's encodings."""
    colors = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (51, 51, 51)]
    head = f"ply\nformat {body_format} 1.0\n" + ("comment TextureFile tex.png\n" if texture else "")
    head += "element vertex 4\n" + "".join(f"property float {a}\n" for a in "xyz")
    head += "".join(f"property uchar {c}\n" for c in ("red", "green", "blue"))
    head += f"element face {len(faces)}\nproperty list uchar int vertex_indices\n"
    head += "property list uchar float texcoord\n" if texture else ""
    uv = [(0, 0), (1, 0), (1, 1), (0, 1)]
    order = ">" if "big" in body_format else "<"
    rows: list[tuple[str, list]] = [("fffBBB", [*p, *c]) for p, c in zip(SQUARE, colors, strict=True)]
    for face in faces:
        row = ("B" + "i" * len(face), [len(face), *face])
        if texture:
            flat = [x for corner in face for x in uv[corner]]
            row = (row[0] + "B" + "f" * len(flat), [*row[1], len(flat), *flat])
        rows.append(row)
    if body_format == "ascii":
        body = "\n".join(" ".join(f"{x:g}" for x in values) for _, values in rows).encode() + b"\n"
    else:
        body = b"".join(struct.pack(order + kinds, *values) for kinds, values in rows)
    return head.encode() + b"end_header\n" + body
