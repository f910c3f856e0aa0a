"""Captures written in each format and read back: the same cameras and the same pixels."""

import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import scene_files
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from data import SceneFormat, UserError, open_scene, write_scene
from data.writers import quaternion

FORMATS = get_args(SceneFormat)
LENSES = {
    "PINHOLE": ("", {}),
    "opencv": ("OPENCV", {"k1": 0.08, "k2": -0.02, "p1": 0.003, "p2": -0.002}),
    "rational": ("FULL_OPENCV", {"k1": 0.3, "k2": -0.1, "p1": 0.001, "k3": 0.02, "k4": 0.05, "k5": -0.02, "k6": 0.01}),
    "fisheye": ("OPENCV_FISHEYE", {"k1": 0.02, "k2": -0.01}),
}


def check_same(scene, again, straightened=False, tolerance=0):
    """The same cameras to 1e-6 and the same pixels as the model gets them.

    Photos that were straightened at full size are compared at that size: to make them smaller, the loader straightens
    after it has made them smaller, which is another path to nearly the same.
    """
    assert len(scene) == len(again) and not again.warnings
    for a, b in zip(scene.frames, again.frames, strict=True):
        np.testing.assert_allclose(b.c2w, a.c2w, atol=1e-6 * np.abs(a.c2w).max())
    for size in [scene.frames[0].image_size] + [(20, 20)] * (not straightened):
        first, second = (s.load(range(len(s)), size) for s in (scene, again))
        np.testing.assert_allclose(second.intrinsics, first.intrinsics, rtol=1e-5)
        np.testing.assert_allclose(second.c2w, first.c2w, atol=1e-5)
        assert (first.images - second.images).abs().max() * 255 <= tolerance + 1e-3


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("lens", LENSES)
@pytest.mark.parametrize("alpha", [False, True])
def test_round_trip(write_capture, tmp_path, to, lens, alpha):
    folder = write_capture(alpha=alpha)
    content = json.loads((folder / "transforms.json").read_text())
    model, numbers = LENSES[lens]
    (folder / "transforms.json").write_text(json.dumps({**content, **numbers, "camera_model": model or "PINHOLE"}))
    scene = open_scene(folder)
    frames = write_scene(scene, tmp_path / "out", to)
    keeps = lens == "PINHOLE" or to != "opencv-json"
    assert all(frame.copied == keeps for frame in frames)
    again = open_scene(tmp_path / "out")
    # Colour and alpha of 8 bits each: laid over the background, they may be rounded the other way.
    check_same(scene, again, straightened=not keeps, tolerance=1 if alpha and not keeps else 0)
    if keeps:
        for a, b in zip(scene.frames, again.frames, strict=True):
            assert a.path.read_bytes() == b.path.read_bytes() and a.intrinsics == b.intrinsics
            assert a.distortion.model == b.distortion.model


@pytest.mark.parametrize("model", ["THIN_PRISM_FISHEYE", "FOV", "SIMPLE_RADIAL", "RADIAL_FISHEYE"])
@pytest.mark.parametrize("to", FORMATS)
def test_lenses_of_colmap(tmp_path, model, to):
    number, lens = {
        "THIN_PRISM_FISHEYE": (10, (0.02, -0.01, 0.001, -0.002, 0.003, -0.001, 0.002, -0.001)),
        "FOV": (7, (0.7,)),
        "SIMPLE_RADIAL": (2, (0.04,)),
        "RADIAL_FISHEYE": (9, (0.03, -0.01)),
    }[model]
    parameters = ((30.0,) if number in (2, 9) else (30.0, 31.0)) + (8.5, 5.75, *lens)
    (tmp_path / "in").mkdir()
    views = [scene_files.random_view(f"{i}.png", np.random.default_rng(i)) for i in range(3)]
    scene_files.write_colmap_binary(tmp_path / "in", views, number, parameters)
    scene = open_scene(tmp_path / "in")
    write_scene(scene, tmp_path / "out", to)
    again = open_scene(tmp_path / "out")
    for a, b in zip(scene.frames, again.frames, strict=True):
        np.testing.assert_allclose(b.c2w, a.c2w, atol=1e-6 * np.abs(a.c2w).max())
        assert np.allclose(np.array(b.intrinsics)[:2] * b.zoom, np.array(a.intrinsics)[:2] * a.zoom)


@pytest.mark.parametrize("to", FORMATS)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_random_captures_in_all_directions(to, data):
    views = data.draw(scene_files.views())
    with tempfile.TemporaryDirectory() as folder:
        start = Path(folder, "in")
        start.mkdir()
        scene_files.write_colmap_binary(start, views)
        scene = open_scene(start)
        write_scene(scene, Path(folder, "out"), to)
        write_scene(open_scene(Path(folder, "out")), Path(folder, "back"), "colmap")
        again = open_scene(Path(folder, "back"))
        assert len(again) == len(views)
        for view in views:
            frame = min(again.frames, key=lambda f, view=view: np.abs(f.c2w - view.c2w).max())
            assert view.name.endswith(frame.name)  # names lose only the folders that all share
            np.testing.assert_allclose(frame.c2w, view.c2w, atol=1e-9 * max(1, np.abs(view.c2w).max()))
            np.testing.assert_allclose(frame.intrinsics, scene_files.INTRINSICS)


def test_pycolmap_reads_what_is_written(shared, tmp_path):
    pycolmap = pytest.importorskip("pycolmap", reason="needs package pycolmap")
    scene = open_scene(shared / "pack/formats/nerfstudio_opencv")
    write_scene(scene, tmp_path / "out", "colmap")
    model = pycolmap.Reconstruction(tmp_path / "out/sparse/0")
    assert len(model.cameras) == 1 and len(model.images) == 8
    found = {image.name: image.cam_from_world().inverse().matrix() for image in model.images.values()}
    (camera,) = model.cameras.values()
    assert camera.model.name == "OPENCV" and (camera.height, camera.width) == scene.frames[0].image_size
    for frame in scene.frames:
        np.testing.assert_allclose(found[frame.name], frame.c2w[:3], atol=1e-12)
        np.testing.assert_allclose(camera.params[:4], frame.intrinsics)


def test_split_numbers_per_frame_and_names(shared, tmp_path):
    blender = open_scene(shared / "cases/01-blender-angle-only/input")
    write_scene(blender, tmp_path / "a", "transforms")
    again = open_scene(tmp_path / "a")
    assert again.split == blender.split and again.frames[0].name == "images/train/r_0.png"
    mixed = open_scene(shared / "cases/02-per-frame-intrinsics-mixed-sizes/input")
    for to in FORMATS:
        write_scene(mixed, tmp_path / to, to)
        for a, b in zip(mixed.frames, open_scene(tmp_path / to).frames, strict=True):
            np.testing.assert_allclose(a.intrinsics, b.intrinsics, rtol=1e-12)
            assert a.image_size == b.image_size and a.name == b.name


def test_turned_photos_become_upright(tmp_path, write_capture):
    folder = write_capture(frames=3, size=(64, 48))
    for file in (folder / "images").iterdir():
        picture = Image.open(file).transpose(Image.Transpose.ROTATE_90)
        exif = Image.Exif()
        exif[0x0112] = 6
        picture.save(file, exif=exif)
    scene = open_scene(folder)
    assert {f.orientation for f in scene.frames} == {6}
    for to in FORMATS:
        frames = write_scene(scene, tmp_path / to, to)
        assert not any(frame.copied for frame in frames)
        check_same(scene, open_scene(tmp_path / to))


def test_names_stay_inside_and_apart(capture, tmp_path):
    scene = open_scene(capture)
    names = [
        "../../evil.png",
        "/etc/a.png",
        "images/x.png",
        "X.png",
        "images_4/deep/x",
        "a\\b.png",
        "new\nline.png",
        "..",
    ]
    frames = tuple(replace(f, name=n) for f, n in zip(scene.frames, names, strict=True))
    written = write_scene(replace(scene, frames=frames), tmp_path / "out", "colmap")
    found = [frame.name for frame in written]
    assert found == ["evil.png", "etc/a.png", "x.png", "X_2.png", "deep/x.png", "a/b.png", "new\nline.png", "007.png"]
    inside = [p for p in (tmp_path / "out").rglob("*.png")]
    assert len(inside) == 8 and not (tmp_path / "evil.png").exists()
    assert len(open_scene(tmp_path / "out")) == 8


def test_nothing_is_replaced_without_being_told(capture, tmp_path):
    scene, out = open_scene(capture), tmp_path / "out"
    write_scene(scene, out, "transforms")
    with pytest.raises(UserError, match=r"not empty.*--overwrite"):
        write_scene(scene, out, "colmap")
    assert (out / "transforms.json").is_file()
    write_scene(scene, out, "colmap", overwrite=True)
    assert sorted(p.name for p in out.iterdir()) == ["images", "sparse"]
    (out / "diary.txt").write_text("mine")
    with pytest.raises(UserError, match=r"also holds diary\.txt"):
        write_scene(scene, out, "colmap", overwrite=True)
    with pytest.raises(UserError, match="is a file"):
        write_scene(scene, out / "diary.txt", "colmap", overwrite=True)
    for place in (capture, capture.parent):
        with pytest.raises(UserError, match="holds the capture"):
            write_scene(scene, place, "colmap", overwrite=True)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_the_folder_that_one_is_in_is_not_replaced(capture, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match="the folder that you are in"):
        write_scene(open_scene(capture), Path("."), "colmap", on_frame=lambda: pytest.fail("was written"))
    assert [p.name for p in tmp_path.rglob(".*")] == []


def test_a_place_that_cannot_be_replaced_is_told_before_anything_is_written(capture, tmp_path, monkeypatch):
    (tmp_path / "mounted").mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: str(path) == str(tmp_path / "mounted"))
    with pytest.raises(UserError, match="top of a disk or mount"):
        write_scene(open_scene(capture), tmp_path / "mounted", "colmap", on_frame=lambda: pytest.fail("was written"))
    assert list((tmp_path / "mounted").iterdir()) == []


def test_a_failure_leaves_the_old_folder_and_no_rest(capture, tmp_path):
    scene, out = open_scene(capture), tmp_path / "out"
    write_scene(scene, out, "transforms")
    before = sorted(p.relative_to(out).as_posix() for p in out.rglob("*"))
    shutil.rmtree(capture / "images")
    with pytest.raises(FileNotFoundError):
        write_scene(scene, out, "colmap", overwrite=True)
    assert sorted(p.relative_to(out).as_posix() for p in out.rglob("*")) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["balls", "out"]


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_quaternion_is_that_of_the_rotation(seed):
    view = scene_files.random_view("a", np.random.default_rng(seed))
    expected = view.quaternion * (1 if view.quaternion[0] >= 0 else -1)
    np.testing.assert_allclose(quaternion(view.w2c[:3, :3]), expected, atol=1e-12)


@pytest.mark.parametrize("turn", [np.diag([1.0, -1, -1]), np.diag([-1.0, -1, 1]), np.eye(3)])
def test_quaternion_of_half_turns(turn):
    w, *xyz = quaternion(turn)
    assert abs(w) == np.float64(np.trace(turn) == 3) and np.abs(xyz).max() == 1 - abs(w)
