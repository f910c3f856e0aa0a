"""Broken mesh files are refused in one sentence."""

from __future__ import annotations

import json
import random
import re

import pytest
from mesh_files import SQUARE_UV, gltf, ply_text, png, quadrants, write_glb, write_obj

from data import UserError, find_meshes, load_mesh


def bad_files() -> dict[str, bytes]:
    """Broken files by name."""
    empty = gltf()
    empty["meshes"][0]["primitives"][0]["mode"] = 0
    loop = gltf()
    loop |= {"scenes": [{"nodes": [0]}]}
    loop["nodes"][0]["children"] = [0]
    packed = gltf() | {"extensionsRequired": ["KHR_draco_mesh_compression"]}
    missing = gltf()
    missing["buffers"][0]["uri"] = "gone.bin"
    return {
        "empty.glb": b"",
        "cut.glb": b"glTF\2\0\0\0\x40\0\0\0\xff\xff\0\0JSON{}",
        "text.glb": b"hello",
        "points.gltf": json.dumps(empty).encode(),
        "loop.gltf": json.dumps(loop).encode(),
        "packed.gltf": json.dumps(packed).encode(),
        "missing.gltf": json.dumps(missing).encode(),
        "list.gltf": b"[]",
        "deep.gltf": b"[" * 100_000,
        "points.obj": b"v 0 0 0\nv 1 0 0\n",
        "flat.obj": b"v 0 0 0\nv 1 0 0\nv 2 0 0\nf 1 2 3\n",
        "far.obj": b"v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 9\n",
        "nan.obj": b"v 0 0 nan\nv 1 0 0\nv 0 1 0\nf 1 2 3\n",
        "huge.obj": b"v 0 0 1e300\nv 1 0 0\nv 0 1 0\nf 1 2 3\n",
        "material.obj": b"mtllib gone.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n",
        "text.ply": b"hello",
        "count.ply": ply_text("ascii", [[0, 1, 2]]).replace(b"vertex 4", b"vertex 99999999999"),
        "negative.ply": ply_text("ascii", [[0, 1, 2]]).replace(b"vertex 4", b"vertex -4"),
        "points.ply": ply_text("binary_little_endian", []),
        "far.ply": ply_text("ascii", [[0, 1, 9]]),
        "length.ply": ply_text("ascii", [[0, 1, 2]]).replace(b"3 0 1 2", b"-3 0 1 2"),
        "cut.ply": ply_text("binary_little_endian", [[0, 1, 2, 3], [0, 1, 2]])[:-2],
        "scene.fbx": b"hello",
    }


@pytest.mark.parametrize("name", bad_files())
def test_bad_files_are_refused_in_one_sentence(tmp_path, name):
    (tmp_path / name).write_bytes(bad_files()[name])
    with pytest.raises(UserError) as caught:
        load_mesh(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


def test_missing_files_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match="no mesh file"):
        load_mesh(tmp_path / "gone.glb")
    with pytest.raises(UserError, match="no mesh file"):
        find_meshes([str(tmp_path / "gone.glb")])
    with pytest.raises(UserError, match="has no mesh files"):
        find_meshes([str(tmp_path)])
    with pytest.raises(UserError, match="not a mesh format"):
        find_meshes([str(tmp_path / "gone.jpg")])


@pytest.mark.parametrize("kind", ["glb", "gltf", "obj", "ply"])
def test_mangled_files_never_end_in_a_traceback(tmp_path, kind):
    quadrants().save(tmp_path / "tex.png")
    content = gltf(
        {"pbrMetallicRoughness": {"baseColorTexture": {"index": 0}}}, png(quadrants(4)), TEXCOORD_0=SQUARE_UV
    )
    originals = {
        "glb": lambda: write_glb(tmp_path / "a.glb", content).read_bytes(),
        "gltf": lambda: json.dumps(content).encode(),
        "obj": lambda: write_obj(tmp_path).read_bytes(),
        "ply": lambda: ply_text("ascii", [[0, 1, 2, 3], [0, 1, 2]], texture=True),
    }
    original = originals[kind]()
    for seed in range(150):
        path = tmp_path / f"mangled.{kind}"
        path.write_bytes(mangle(original, random.Random(seed)))
        try:
            load_mesh(path)
        except UserError as error:
            assert "\n" not in str(error), seed


def mangle(original: bytes, rng: random.Random) -> bytes:
    """Cut a file off, flip bytes, or write other things in place of a number."""
    data = bytearray(original)
    kind = rng.choice(["cut", "flip", "number"])
    if kind == "cut":
        return bytes(data[: rng.randrange(len(data))])
    if kind == "flip":
        for _ in range(rng.randrange(1, 9)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    number = rng.choice(list(re.finditer(rb"-?\d+(\.\d+)?", original)))
    other = rng.choice([b"99999999999", b"1e400", b"NaN", b"-1", b"null", b"{}", b"9" * 400, b""])
    return original[: number.start()] + other + original[number.end() :]
