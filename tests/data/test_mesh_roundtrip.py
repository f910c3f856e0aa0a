"""Random meshes written by independent code are read back the same, whatever the format."""

import json
import tempfile
from pathlib import Path

import mesh_files
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data import load_mesh


def write_obj(folder, vertices, triangles):
    lines = [f"v {x:.9g} {y:.9g} {z:.9g}" for x, y, z in vertices.tolist()]
    lines += [f"f {a + 1} {b + 1} {c + 1}" for a, b, c in triangles.tolist()]
    (folder / "a.obj").write_text("\n".join(lines) + "\n")
    return folder / "a.obj"


def write_ply(folder, vertices, triangles, encoding):
    head = f"ply\nformat {encoding} 1.0\nelement vertex {len(vertices)}\n"
    head += "property float x\nproperty float y\nproperty float z\n"
    head += f"element face {len(triangles)}\nproperty list uchar int vertex_indices\nend_header\n"
    if encoding == "ascii":
        rows = [" ".join(f"{v:.9g}" for v in row) for row in vertices.tolist()]
        body = "\n".join([*rows, *(f"3 {a} {b} {c}" for a, b, c in triangles.tolist())]).encode() + b"\n"
    else:
        order = ">" if "big" in encoding else "<"
        faces = np.zeros(len(triangles), [("n", "u1"), ("i", f"{order}i4", 3)])
        faces["n"], faces["i"] = 3, triangles
        body = vertices.astype(f"{order}f4").tobytes() + faces.tobytes()
    (folder / "a.ply").write_bytes(head.encode() + body)
    return folder / "a.ply"


def write_gltf(folder, vertices, triangles, binary):
    content = mesh_files.gltf()
    indices, corners = triangles.astype(np.uint16).tobytes(), vertices.astype(np.float32).tobytes()
    padding = bytes(-len(indices) % 4)
    data = indices + padding + corners
    content["accessors"][0]["count"], content["accessors"][1]["count"] = triangles.size, len(vertices)
    content["bufferViews"] = [
        {"buffer": 0, "byteOffset": 0, "byteLength": len(indices)},
        {"buffer": 0, "byteOffset": len(indices + padding), "byteLength": len(corners)},
    ]
    content["buffers"] = [{"byteLength": len(data), "uri": mesh_files.data_uri(data)}]
    if binary:
        return mesh_files.write_glb(folder / "a.glb", content)
    (folder / "a.gltf").write_text(json.dumps(content))
    return folder / "a.gltf"


WRITERS = {
    "obj": write_obj,
    "ply_text": lambda *mesh: write_ply(*mesh, "ascii"),
    "ply_little": lambda *mesh: write_ply(*mesh, "binary_little_endian"),
    "ply_big": lambda *mesh: write_ply(*mesh, "binary_big_endian"),
    "gltf": lambda *mesh: write_gltf(*mesh, binary=False),
    "glb": lambda *mesh: write_gltf(*mesh, binary=True),
}


@pytest.mark.parametrize("name", WRITERS)
@given(seed=st.integers(0, 2**32), count=st.integers(3, 40), faces=st.integers(1, 60))
@settings(max_examples=20, deadline=None)
def test_what_is_written_is_read(name, seed, count, faces):
    rng = np.random.default_rng(seed)
    vertices = (rng.normal(size=(count, 3)) * 10 ** rng.uniform(-2, 3)).astype(np.float32)
    triangles = np.stack([rng.permutation(count)[:3] for _ in range(faces)])
    with tempfile.TemporaryDirectory() as folder:
        mesh = load_mesh(WRITERS[name](Path(folder), vertices, triangles), "z")
    np.testing.assert_allclose(mesh.vertices[mesh.triangles], vertices[triangles], rtol=1e-6)
    np.testing.assert_array_equal(mesh.colors, 1)
