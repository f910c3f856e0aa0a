"""CO3D without its data: cameras made by the documented formulas of PyTorch3D."""

import gzip
import json

import numpy as np
import pytest
import scene_files

from data import UserError, list_scenes, open_scene


def to_screen(entry, point):
    """Where PyTorch3D draws a world point, in pixels from the top left corner."""
    view = entry["viewpoint"]
    x, y, z = point @ np.array(view["R"]) + view["T"]
    ndc = np.array(view["focal_length"]) * [x, y] / z + view["principal_point"]
    h, w = entry["image"]["size"]
    scale = min(h, w) / 2 if view["intrinsics_format"] == "ndc_isotropic" else np.array([w, h]) / 2
    return np.array([w, h]) / 2 - scale * ndc


@pytest.fixture
def write(tmp_path):
    def write(kind="ndc_isotropic", sequences=("110_1",), change=lambda entries: entries):
        views = [scene_files.random_view(f"frame{i:06d}.png", np.random.default_rng(i)) for i in range(3)]
        (file,) = scene_files.write_co3d(tmp_path, views, kind, sequences)
        entries = json.loads(gzip.decompress(file.read_bytes()))
        file.write_bytes(gzip.compress(json.dumps(change(entries)).encode()))
        return tmp_path, views, entries

    return write


@pytest.mark.parametrize("kind", ["ndc_isotropic", "ndc_norm_image_bounds"])
def test_points_land_where_pytorch3d_draws_them(write, kind):
    folder, views, entries = write(kind)
    scene = open_scene(folder / "110_1")
    assert scene.format == "CO3D" and [f.name for f in scene.frames] == [v.name for v in views]
    for frame, view, entry in zip(scene.frames, views, entries, strict=True):
        np.testing.assert_allclose(frame.c2w, view.c2w, rtol=1e-9, atol=1e-9)
        point = (view.c2w @ [0.3, -0.2, 2.0, 1])[:3]
        x, y, z = (np.linalg.inv(frame.c2w) @ [*point, 1])[:3]
        fx, fy, cx, cy = frame.intrinsics
        np.testing.assert_allclose([fx * x / z + cx, fy * y / z + cy], to_screen(entry, point))


def test_a_category_asks_for_a_sequence(write):
    folder, *_ = write(sequences=("110_1", "110_2"))
    with pytest.raises(UserError, match=r"2 scenes \(110_1, 110_2\)"):
        open_scene(folder)
    assert [len(open_scene(path)) for path in list_scenes(folder)] == [3, 3]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image": None}, "no image"),
        ({"viewpoint": [1]}, "no viewpoint"),
        ({"viewpoint": {"R": [1], "T": [1], "focal_length": [1], "principal_point": [1]}}, "other shapes"),
        ({"image": {"path": "x.png", "size": [0, 16]}}, "impossible size"),
        ({"image": {"path": 7, "size": [12, 16]}}, "no path"),
    ],
)
def test_a_bad_entry_costs_only_its_frame(write, change, reason):
    folder, *_ = write(change=lambda entries: [{**entries[0], **change}, 7, *entries[1:]])
    scene = open_scene(folder / "110_1")
    assert len(scene) == 2 and reason in scene.warnings[0]


@pytest.mark.parametrize("content", [b"", b"noise", gzip.compress(b"x" * 2**22), gzip.compress(b'[{"a": 1}, {"b')])
def test_damaged_files(write, content):
    folder, *_ = write()
    (folder / "frame_annotations.jgz").write_bytes(content)
    with pytest.raises(UserError, match=r"Download it again|no usable frame"):
        open_scene(folder / "110_1")
    whole = gzip.compress(json.dumps([{"a": 1}] * 99).encode())
    (folder / "frame_annotations.jgz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="cannot be unpacked"):
        open_scene(folder / "110_1")
