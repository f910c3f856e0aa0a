"""Scenes written from meshes: cameras, settings, and what is missing."""

from __future__ import annotations

import builtins
import json
import sys

import numpy as np
import pytest
from PIL import Image

from data import MeshSceneConfig, UserError, open_scene, require_open3d, write_mesh_scene

pytest.importorskip("open3d", reason="needs package open3d")


def write_markers(path) -> np.ndarray:
    """A .ply of small tetrahedra in pure colours on a sphere; returns where they are."""
    places = np.array([[1, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1], [0, 0, -1]], float)
    tetrahedron = 0.06 * np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    lines = ["ply", "format ascii 1.0", "element vertex 24", *(f"property float {a}" for a in "xyz")]
    lines += [*(f"property uchar {c}" for c in ("red", "green", "blue")), "element face 24"]
    lines += ["property list uchar int vertex_indices", "end_header"]
    for index, place in enumerate(places):
        color = [255 * (index + 1 >> bit & 1) for bit in range(3)]
        lines += [" ".join(f"{x:g}" for x in [*(place + corner), *color]) for corner in tetrahedron]
    for index in range(6):
        a, b, c, d = range(4 * index, 4 * index + 4)
        lines += [f"3 {i} {j} {k}" for i, j, k in ((a, b, c), (a, c, d), (a, d, b), (b, d, c))]
    path.write_text("\n".join(lines) + "\n")
    return places


def test_markers_appear_where_the_written_cameras_say(tmp_path):
    places = write_markers(tmp_path / "markers.ply")
    config = MeshSceneConfig(views=4, size=(48, 64), scale_range=(1.0, 1.0), aim_jitter=0.1, seed=3)
    assert write_mesh_scene(tmp_path / "markers.ply", tmp_path / "scene", "markers", config)
    content = json.loads((tmp_path / "scene" / "transforms.json").read_text())
    scale = 1 / np.linalg.norm(np.array([1.06, 0.06, 0.06]))
    seen = 0
    for frame in content["frames"]:
        picture = np.asarray(Image.open(tmp_path / "scene" / frame["file_path"])).astype(float)
        assert picture.shape == (48, 64, 4)
        c2w = np.array(frame["transform_matrix"])
        for index, place in enumerate(places * scale):
            x, y, z = np.linalg.inv(c2w)[:3] @ [*place, 1]
            # OpenGL axes: the camera looks along -z, y points up.
            column = content["fl_x"] * x / -z + content["cx"]
            row = content["fl_y"] * -y / -z + content["cy"]
            towards = places * scale - c2w[:3, 3]
            towards = towards / np.linalg.norm(towards, axis=1, keepdims=True)
            near_another = np.sort(towards @ towards[index])[-2] > np.cos(0.1)
            if near_another or not (1 < row < 47 and 1 < column < 63):
                continue
            seen += 1
            rgba = picture[int(row), int(column)]
            assert rgba[3] == 255
            expected = np.array([index + 1 >> bit & 1 for bit in range(3)])
            np.testing.assert_array_equal(rgba[:3] > 60, expected == 1)
            assert (rgba[:3][expected == 0] == 0).all()
    assert seen >= 12


def test_open_scene_reads_what_was_written(tmp_path):
    write_markers(tmp_path / "markers.ply")
    config = MeshSceneConfig(views=3, size=(32, 40), layout="fibonacci")
    write_mesh_scene(tmp_path / "markers.ply", tmp_path / "scene", "markers", config)
    scene = open_scene(tmp_path / "scene")
    assert len(scene) == 3
    assert not scene.warnings
    views = scene.load([0, 1, 2], image_size=(32, 40))
    written = json.loads((tmp_path / "scene" / "transforms.json").read_text())
    np.testing.assert_allclose(
        views.intrinsics[0].numpy(), [written[k] for k in ("fl_x", "fl_y", "cx", "cy")], rtol=1e-6
    )
    for frame, given in zip(scene.frames, written["frames"], strict=True):
        np.testing.assert_allclose(frame.c2w, np.array(given["transform_matrix"]) * [1, -1, -1, 1], atol=1e-12)


def test_field_of_view_and_size_are_as_asked(tmp_path):
    write_markers(tmp_path / "markers.ply")
    config = MeshSceneConfig(views=1, size=(32, 40), fov_range=(60, 60))
    write_mesh_scene(tmp_path / "markers.ply", tmp_path / "scene", "markers", config)
    written = json.loads((tmp_path / "scene" / "transforms.json").read_text())
    assert np.degrees(2 * np.arctan(20 / written["fl_x"])) == pytest.approx(60)
    assert (written["w"], written["h"], written["cx"], written["cy"]) == (40, 32, 20, 16)


@pytest.mark.parametrize(
    "wrong",
    [
        {"views": 0},
        {"size": (0, 64)},
        {"size": (64, 100_000)},
        {"fov_range": (60, 50)},
        {"fov_range": (10, 180)},
        {"radius_range": (0, 1)},
        {"radius_range": (float("nan"), 1)},
        {"elevation_range": (-91, 0)},
        {"aim_jitter": -1},
        {"rays_per_side": 0},
        {"seed": -1},
    ],
)
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(UserError):
        MeshSceneConfig(**wrong)


def test_a_missing_system_library_is_named(monkeypatch):
    real = builtins.__import__

    def without_libusb(name, *args, **kwargs):
        if name == "open3d":
            raise ImportError("libusb-1.0.so.0: cannot open shared object file: No such file or directory")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_libusb)
    with pytest.raises(UserError, match=r"apt install libusb-1\.0-0"):
        require_open3d()


def test_missing_open3d_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "open3d", None)
    with pytest.raises(UserError, match="pip install open3d"):
        require_open3d()
