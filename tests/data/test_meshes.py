"""Mesh files are read right."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from mesh_files import (
    SQUARE,
    SQUARE_TRIANGLES,
    SQUARE_UV,
    gltf,
    ply_text,
    png,
    quadrants,
    write_glb,
    write_gltf,
    write_obj,
)

from data import UserError, find_meshes, load_mesh
from data.meshes.mesh import Mesh, linear_to_srgb, srgb_to_linear


def corners(mesh: Mesh) -> np.ndarray:
    """Positions of triangle corners, in an order that does not depend on how vertices are shared."""
    return mesh.vertices[mesh.triangles]


def test_srgb_matches_known_values_and_inverts():
    assert srgb_to_linear(np.array(0.5)) == pytest.approx(0.214041, abs=1e-6)
    assert srgb_to_linear(np.array(0.04)) == pytest.approx(0.04 / 12.92)
    x = np.linspace(0, 1, 1001)
    np.testing.assert_allclose(linear_to_srgb(srgb_to_linear(x)), x, atol=1e-7)


def test_gltf_turns_to_z_up_and_applies_nested_nodes(tmp_path):
    content = gltf(node={"translation": [0, 0, 5], "scale": [2, 1, 1]})
    quarter_about_y = [0, np.sqrt(0.5), 0, np.sqrt(0.5)]
    content["nodes"].append({"children": [0], "rotation": quarter_about_y})
    content["scenes"] = [{"nodes": [1]}]
    mesh = load_mesh(write_gltf(tmp_path / "a.gltf", content))
    x, y, z = (SQUARE * [2, 1, 1] + [0, 0, 5]).T
    turned = np.stack([z, y, -x], axis=1)
    expected = np.stack([turned[:, 0], -turned[:, 2], turned[:, 1]], axis=1)
    np.testing.assert_allclose(corners(mesh), expected[SQUARE_TRIANGLES], atol=1e-6)


def test_gltf_matrix_node_is_column_major(tmp_path):
    matrix = np.eye(4)
    matrix[:3, 3] = 1, 2, 3
    content = gltf(node={"matrix": matrix.T.reshape(-1).tolist()})
    mesh = load_mesh(write_gltf(tmp_path / "a.gltf", content), up="z")
    np.testing.assert_allclose(corners(mesh), (SQUARE + np.array([1, 2, 3]))[SQUARE_TRIANGLES], atol=1e-6)


def test_glb_and_gltf_agree_in_colours_and_texture(tmp_path):
    material = {"pbrMetallicRoughness": {"baseColorFactor": [0.5, 0.25, 1, 1], "baseColorTexture": {"index": 0}}}
    colors = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [51, 51, 51]], np.uint8)
    content = gltf(material, png(quadrants()), TEXCOORD_0=SQUARE_UV, COLOR_0=colors)
    a = load_mesh(write_gltf(tmp_path / "a.gltf", content))
    b = load_mesh(write_glb(tmp_path / "a.glb", content))
    for mesh in (a, b):
        np.testing.assert_allclose(mesh.colors, colors / 255, atol=1e-6)
        np.testing.assert_array_equal(mesh.uv, SQUARE_UV)
        np.testing.assert_allclose(mesh.materials[0].color, [0.5, 0.25, 1])
        assert mesh.materials[0].alpha_cutoff is None
        texture = mesh.materials[0].texture
        assert texture is not None
        np.testing.assert_array_equal(texture[..., :3], np.asarray(quadrants()))
    np.testing.assert_array_equal(corners(a), corners(b))


@pytest.mark.parametrize(
    ("mode", "expected"), [({"alphaMode": "MASK", "alphaCutoff": 0.3}, 0.3), ({"alphaMode": "BLEND"}, 0.5), ({}, None)]
)
def test_gltf_alpha_modes_become_holes(tmp_path, mode, expected):
    material = {"pbrMetallicRoughness": {"baseColorTexture": {"index": 0}}, **mode}
    mesh = load_mesh(write_gltf(tmp_path / "a.gltf", gltf(material, png(quadrants()), TEXCOORD_0=SQUARE_UV)))
    assert mesh.materials[0].alpha_cutoff == expected


def test_gltf_texture_transform_moves_coordinates(tmp_path):
    # The specification's own example: the lower left quadrant of the picture, turned a quarter clockwise.
    move = {"KHR_texture_transform": {"offset": [0, 1], "scale": [0.5, 0.5], "rotation": np.pi / 2}}
    material = {"pbrMetallicRoughness": {"baseColorTexture": {"index": 0, "extensions": move}}}
    mesh = load_mesh(write_gltf(tmp_path / "a.gltf", gltf(material, png(quadrants()), TEXCOORD_0=SQUARE_UV)))
    bottom_left, bottom_right, top_right, top_left = mesh.uv[:4]
    np.testing.assert_allclose(top_left, [0, 1], atol=1e-6)
    np.testing.assert_allclose(top_right, [0, 0.5], atol=1e-6)
    np.testing.assert_allclose(bottom_right, [0.5, 0.5], atol=1e-6)
    np.testing.assert_allclose(bottom_left, [0.5, 1], atol=1e-6)


def test_pack_objects_agree_with_open3d_and_the_manifest(shared):
    open3d = pytest.importorskip("open3d", reason="needs package open3d")
    folder = shared / "pack" / "objects"
    rows = {row["id"]: row for row in csv.DictReader((folder / "manifest.csv").open(encoding="utf-8"))}
    for name in ("sc_suv", "pm_donut_1", "bs0_hotdog"):
        mesh = load_mesh(folder / rows[name]["file"], up="z")
        assert len(mesh.triangles) == int(rows[name]["triangles"])
        assert np.linalg.norm(mesh.vertices, axis=1).max() == pytest.approx(1, abs=1e-5)
        model = open3d.io.read_triangle_model(str(folder / rows[name]["file"]))
        parts = [np.asarray(m.mesh.vertices)[np.asarray(m.mesh.triangles)] for m in model.meshes]
        assert sorted(map(len, parts)) == sorted(np.bincount(mesh.material_index).tolist())
        expected, got = np.sort(np.concatenate(parts).reshape(-1)), np.sort(corners(mesh).reshape(-1))
        np.testing.assert_allclose(got, expected, atol=1e-6)
        colors = np.sort([np.asarray(m.base_color)[:3] for m in model.materials], axis=0)
        np.testing.assert_allclose(np.sort([m.color for m in mesh.materials[:-1]], axis=0), colors, atol=1e-6)


def test_obj_polygons_negative_numbers_and_materials(tmp_path):
    mesh = load_mesh(write_obj(tmp_path), up="z")
    expected = np.concatenate([SQUARE[SQUARE_TRIANGLES], [[SQUARE[0], SQUARE[1], [0, 0, 1]]]])
    np.testing.assert_array_equal(corners(mesh), expected)
    np.testing.assert_array_equal(mesh.uv[mesh.triangles][:2], SQUARE_UV[SQUARE_TRIANGLES])
    painted, plain = (mesh.materials[i] for i in mesh.material_index[[0, 2]])
    assert painted.texture is not None
    np.testing.assert_array_equal(painted.texture[..., :3], np.asarray(quadrants()))
    np.testing.assert_allclose(plain.color, srgb_to_linear(np.array([0.5, 0.25, 0.75])), atol=1e-6)


def test_obj_vertex_colours(tmp_path):
    (tmp_path / "a.obj").write_text("v 0 0 0 1 0 0\nv 1 0 0 0 1 0\nv 0 1 0 0 0 0.5\nf 1 2 3\n")
    mesh = load_mesh(tmp_path / "a.obj")
    np.testing.assert_allclose(mesh.colors, np.diag([1, 1, 0.214041]), atol=1e-6)


@pytest.mark.parametrize("body_format", ["ascii", "binary_little_endian", "binary_big_endian"])
@pytest.mark.parametrize("faces", [[[0, 1, 2], [0, 2, 3]], [[0, 1, 2, 3]], [[0, 1, 2, 3], [0, 1, 2]]])
def test_ply_encodings_and_polygons(tmp_path, body_format, faces):
    (tmp_path / "a.ply").write_bytes(ply_text(body_format, faces))
    mesh = load_mesh(tmp_path / "a.ply")
    np.testing.assert_array_equal(corners(mesh)[:2], SQUARE[SQUARE_TRIANGLES])
    assert len(mesh.triangles) == sum(len(f) - 2 for f in faces)
    expected = srgb_to_linear(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.2, 0.2, 0.2]]))
    np.testing.assert_allclose(mesh.colors[mesh.triangles][:2], expected[SQUARE_TRIANGLES], atol=1e-6)


@pytest.mark.parametrize("body_format", ["ascii", "binary_little_endian"])
def test_ply_texture(tmp_path, body_format):
    quadrants().save(tmp_path / "tex.png")
    (tmp_path / "a.ply").write_bytes(ply_text(body_format, [[0, 1, 2, 3]], texture=True))
    mesh = load_mesh(tmp_path / "a.ply")
    np.testing.assert_array_equal(mesh.uv[mesh.triangles], SQUARE_UV[SQUARE_TRIANGLES])
    assert mesh.materials[0].texture is not None


def test_ply_written_by_open3d(tmp_path):
    open3d = pytest.importorskip("open3d", reason="needs package open3d")
    ball = open3d.geometry.TriangleMesh.create_sphere(1.0, 12)
    ball.vertex_colors = open3d.utility.Vector3dVector(np.random.default_rng(0).random((len(ball.vertices), 3)))
    open3d.io.write_triangle_mesh(str(tmp_path / "a.ply"), ball)
    mesh = load_mesh(tmp_path / "a.ply")
    np.testing.assert_allclose(corners(mesh), np.asarray(ball.vertices)[np.asarray(ball.triangles)], atol=1e-6)
    expected = np.asarray(ball.vertex_colors)[np.asarray(ball.triangles)]
    np.testing.assert_allclose(linear_to_srgb(mesh.colors[mesh.triangles]), expected, atol=0.5 / 255 + 1e-6)


def test_find_meshes_names_files_in_folders_and_lists(tmp_path):
    for name in ("a/m.glb", "b/m.glb", "c.obj", "c.ply", "readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "list.txt").write_text("# two meshes\na/m.glb\n\nc.obj\n")
    found = {name: path.relative_to(tmp_path).as_posix() for name, path in find_meshes([str(tmp_path)]).items()}
    assert found == {"a-m": "a/m.glb", "b-m": "b/m.glb", "c": "c.obj", "c_ply": "c.ply"}
    assert list(find_meshes([str(tmp_path / "list.txt")])) == ["m", "c"]
    (tmp_path / "letter.txt").write_text("Dear reader")
    with pytest.raises(UserError, match=r"letter\.txt lists 'Dear reader', which is no mesh"):
        find_meshes([str(tmp_path / "letter.txt")])


def test_fit_sphere_centres_and_scales(tmp_path):
    content = gltf(node={"translation": [7, 8, 9], "scale": [3, 3, 3]})
    mesh = load_mesh(write_gltf(tmp_path / "a.gltf", content)).fit_sphere(1.5)
    used = mesh.vertices[np.unique(mesh.triangles)]
    np.testing.assert_allclose(used.min(axis=0) + used.max(axis=0), 0, atol=1e-5)
    assert np.linalg.norm(used, axis=1).max() == pytest.approx(1.5, abs=1e-5)
