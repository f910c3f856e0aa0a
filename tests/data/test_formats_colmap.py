"""COLMAP models: the cases that users met, the lens models against pycolmap, and damaged files."""

import shutil
import struct

import numpy as np
import pytest
import scene_files
import torch
from PIL import Image

from apps.inspect import dump_scene
from data import UserError, open_scene
from data.distortion import distort
from data.parsers import colmap_binary
from data.parsers.colmap_models import LENS_MODELS, READ, Camera, read_numbers

# Numbers after fx fy cx cy (or f cx cy), small enough for the photo not to fold.
LENS_NUMBERS = {
    "SIMPLE_RADIAL": (0.04,),
    "RADIAL": (0.05, -0.02),
    "OPENCV": (0.05, -0.02, 0.001, -0.002),
    "FULL_OPENCV": (0.3, -0.1, 0.001, 0.002, 0.02, 0.05, -0.02, 0.01),
    "OPENCV_FISHEYE": (0.05, -0.02, 0.01, -0.003),
    "SIMPLE_RADIAL_FISHEYE": (0.03,),
    "RADIAL_FISHEYE": (0.03, -0.01),
    "THIN_PRISM_FISHEYE": (0.02, -0.01, 0.001, -0.002, 0.003, -0.001, 0.002, -0.001),
    "FOV": (0.8,),
    "SIMPLE_FISHEYE": (),
    "FISHEYE": (),
    "SIMPLE_PINHOLE": (),
    "PINHOLE": (),
}


@pytest.fixture
def views():
    names = ["b (10).png", "left/a 1.png", "right/a 1.png", "ü/c.png"]
    return [scene_files.random_view(name, np.random.default_rng(i)) for i, name in enumerate(names)]


@pytest.mark.parametrize("rigs", [True, False])
@pytest.mark.parametrize(
    ("case", "count"),
    [("03-colmap-text-blank-lines-and-spaces", 7), ("04-colmap4-rig-binary", 8), ("05-colmap-simple-radial", 8)],
)
def test_cases(shared, judge, tmp_path, case, count, rigs):
    folder = tmp_path / "input"
    shutil.copytree(shared / "cases" / case / "input", folder)
    if not rigs:
        for file in ("rigs.bin", "frames.bin"):
            (folder / "sparse/0" / file).unlink(missing_ok=True)
    scene = open_scene(folder)
    assert scene.format == "COLMAP" and len(scene) == count
    dump_scene(scene, tmp_path / "dump")
    report = judge.run(str(tmp_path / "dump"), str(shared / "cases" / case / "expected.json"), quiet=True)
    assert report["verdict"] and report["missing_views"] == report["unexpected_views"] == [], report
    # A right reader is at about 0.05 and 0.08 pixels; ignored distortion is at 0.47.
    assert report["known_points_median_px"] < 0.1
    assert scene.warnings == (("1 of 9 frames are left out: left/004.png (no pose)",) if case.startswith("04") else ())


def test_text_and_binary_samples_agree(shared):
    text, binary = (open_scene(shared / f"pack/formats/colmap_{kind}") for kind in ("text", "binary"))
    assert [f.name for f in text.frames] == [f.name for f in binary.frames] and len(text) == 8
    for a, b in zip(text.frames, binary.frames, strict=True):
        np.testing.assert_allclose(a.c2w, b.c2w, atol=1e-12)
        assert a.intrinsics == b.intrinsics and a.distortion == b.distortion


def test_poses_are_those_of_pycolmap(shared):
    pycolmap = pytest.importorskip("pycolmap", reason="needs package pycolmap")
    folder = shared / "cases/04-colmap4-rig-binary/input"
    model = pycolmap.Reconstruction(folder / "sparse/0")
    expected = {image.name: image.cam_from_world().inverse().matrix() for image in model.images.values()}
    scene = open_scene(folder)
    assert len(expected) == len(scene) == 8
    for frame in scene.frames:
        np.testing.assert_allclose(frame.c2w[:3], expected[frame.name], atol=1e-12)


@pytest.mark.parametrize("model", READ)
def test_lens_models_bend_as_in_pycolmap(model):
    pycolmap = pytest.importorskip("pycolmap", reason="needs package pycolmap")
    counts = {lens.name: lens.count for lens in LENS_MODELS.values()}
    numbers = LENS_NUMBERS[model]
    focal = (1.0,) * (counts[model] - 2 - len(numbers))
    parameters = (*focal, 0.0, 0.0, *numbers)
    camera = pycolmap.Camera(model=model, width=10, height=10, params=parameters)
    points = np.random.default_rng(0).uniform(-0.7, 0.7, (50, 2))
    rays = np.concatenate([points, np.ones((50, 1))], axis=1)
    expected = np.stack([np.asarray(camera.img_from_cam(r.reshape(1, 3))).reshape(2) for r in rays])
    lens = read_numbers(Camera(model, (10, 10), parameters)).distortion
    torch.testing.assert_close(distort(torch.from_numpy(points), lens), torch.from_numpy(expected), atol=1e-9, rtol=0)
    assert lens.is_pinhole == ("PINHOLE" in model)


def test_the_table_of_lens_models_is_that_of_pycolmap():
    pycolmap = pytest.importorskip("pycolmap", reason="needs package pycolmap")
    for number, lens in LENS_MODELS.items():
        camera = pycolmap.Camera.create_from_model_id(1, pycolmap.CameraModelId(number), 10.0, 8, 8)
        assert (camera.model.name, len(camera.params)) == lens


@pytest.mark.parametrize("number", [n for n, lens in LENS_MODELS.items() if lens.name not in READ])
def test_other_lens_models_are_refused_by_name_with_a_way_out(tmp_path, views, number):
    lens = LENS_MODELS[number]
    parameters = (*scene_files.INTRINSICS, *(0.0,) * 16)[: lens.count]
    scene_files.write_colmap_binary(tmp_path, views, number, parameters)
    with pytest.raises(UserError, match=rf"{lens.name}, which is not read.*image_undistorter"):
        open_scene(tmp_path)


def test_one_refused_lens_among_others_costs_only_its_photos(tmp_path, views):
    cameras, images = scene_files.write_colmap_text(tmp_path, views)
    cameras.write_text(cameras.read_text() + "18 EQUIRECTANGULAR 16 12 16 12\n")
    images.write_text(images.read_text().replace("17 b (10).png", "18 b (10).png"))
    scene = open_scene(tmp_path)
    assert len(scene) == 3 and "b (10).png (lens model EQUIRECTANGULAR is not read" in scene.warnings[0]


@pytest.mark.parametrize(
    "points", [("",), ("1.5 2.5 -1",), ("1.5 2.5 -1", ""), ("1 2 3 4 5 6 7 8 9 10 11 12",), (None,)]
)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lines_of_points_blank_full_or_absent(tmp_path, views, points, ending):
    _, images = scene_files.write_colmap_text(tmp_path, views, points=[p or "" for p in points])
    lines = images.read_text().split("\n")
    if points == (None,):
        lines = [line for line in lines if line]
    images.write_bytes(ending.join(["\ufeff# x", "", *lines]).encode())
    scene_files.check_same(open_scene(tmp_path), views)


@pytest.mark.parametrize("place", ["sparse", "sparse/0", "colmap/sparse/0", "dense/sparse", "."])
def test_usual_places(tmp_path, views, place):
    scene_files.write_colmap_binary(tmp_path, views, place="model")
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    for file in (tmp_path / "model").iterdir():
        file.rename(tmp_path / place / file.name)
    scene_files.check_same(open_scene(tmp_path), views)
    if place != "dense/sparse":
        scene_files.check_same(open_scene(tmp_path / place), views)


def test_the_largest_model_is_taken_and_named(tmp_path, views):
    scene_files.write_colmap_binary(tmp_path, views[:1], place="sparse/0")
    scene_files.write_colmap_binary(tmp_path, views, place="sparse/1")
    scene_files.write_colmap_binary(tmp_path, views[:2], place="sparse/2")
    scene = open_scene(tmp_path)
    scene_files.check_same(scene, views)
    assert any("largest of 3 models is taken, sparse/1 with 4 photos" in note for note in scene.notes)
    (tmp_path / "sparse/0/images.bin").write_bytes(b"\xff" * 30)
    assert any("a model is left out" in w and "sparse/0" in w for w in open_scene(tmp_path).warnings)


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_downscaled_photos(tmp_path, views, factor):
    scene_files.write_colmap_binary(tmp_path, views)
    shutil.rmtree(tmp_path / "images")
    scene_files.write_photos(tmp_path / f"images_{factor}", [v.name for v in views], (12 // factor, 16 // factor))
    scene = open_scene(tmp_path)
    h, w = scene.frames[0].image_size
    fx, fy, cx, cy = scene_files.INTRINSICS
    # The true size counts: 12 / 8 is rounded to 1 pixel.
    np.testing.assert_allclose(scene.frames[0].intrinsics, (fx * w / 16, fy * h / 12, cx * w / 16, cy * h / 12))
    assert any(f"4 photos are taken from images_{factor}" in note for note in scene.notes)


def test_photos_without_a_pose_or_a_file(tmp_path, views):
    scene_files.write_colmap_binary(tmp_path, views)
    Image.new("RGB", (16, 12)).save(tmp_path / "images/left/new.png")
    (tmp_path / "images/left/notes.txt").write_text("no photo")
    (tmp_path / "images/right/a 1.png").unlink()
    (warning,) = open_scene(tmp_path).warnings
    assert warning.startswith("2 of 5 frames") and "left/new.png (no pose)" in warning
    assert "right/a 1.png (missing)" in warning


def test_a_name_with_a_folder_is_never_taken_from_another_folder(tmp_path, views):
    scene_files.write_colmap_binary(tmp_path, views)
    (tmp_path / "images/left/a 1.png").rename(tmp_path / "images/a 1.png")
    warning = open_scene(tmp_path).warnings[0]
    assert "left/a 1.png (missing)" in warning and "a 1.png (no pose)" in warning


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("17 PINHOLE 16 12", "17 PINHOLE 16", "line 2, is no camera"),
        ("17 PINHOLE 16 12", "17 PINHOLE wide 12", "line 2, is no camera"),
        ("17 PINHOLE 16 12", "18 PINHOLE 16 12", "camera 17 is not in the model"),
        ("17 PINHOLE 16 12", "17 PINHOLE 0 12", "impossible size"),
        ("17 PINHOLE 16 12 14.5", "17 PINHOLE 16 12 nan", "NaN or too large"),
        ("17 PINHOLE 16 12 14.5", "17 PINHOLE 16 12 -14.5", "impossible camera numbers"),
        ("17 PINHOLE 16 12 14.5", "17 UNHEARD 16 12 14.5", "lens model UNHEARD"),
    ],
)
def test_bad_cameras_are_told(tmp_path, views, old, new, reason):
    cameras, _ = scene_files.write_colmap_text(tmp_path, views)
    text = cameras.read_text()
    assert old in text
    cameras.write_text(text.replace(old, new))
    with pytest.raises(UserError, match=reason):
        open_scene(tmp_path)


def test_a_bad_line_costs_only_its_photo(tmp_path, views):
    _, images = scene_files.write_colmap_text(tmp_path, views)
    lines = images.read_text().split("\n")
    lines[1] = "nonsense"
    lines[3] = " ".join([lines[3].split()[0], "0 0 0 0", *lines[3].split()[5:]])
    images.write_text("\n".join(lines))
    scene = open_scene(tmp_path)
    assert len(scene) == 2 and "line 2 (not a photo: 'nonsense')" in scene.warnings[0]
    assert "left/a 1.png (NaN in the matrix)" in scene.warnings[0]


@pytest.mark.parametrize("count", [2**63, 2**64 - 1, 9])
def test_counts_are_not_believed(tmp_path, views, count):
    cameras, images = scene_files.write_colmap_binary(tmp_path, views)
    for file in (cameras, images):
        whole = file.read_bytes()
        file.write_bytes(struct.pack("<Q", count) + whole[8:])
        with pytest.raises(UserError, match=f"{file.name} is cut off or damaged"):
            open_scene(tmp_path)
        file.write_bytes(whole)
    at = images.read_bytes().index(b"b (10).png\0") + 11
    images.write_bytes(images.read_bytes()[:at] + struct.pack("<Q", count) + images.read_bytes()[at + 8 :])
    with pytest.raises(UserError, match="cut off or damaged"):
        open_scene(tmp_path)


def test_an_unknown_lens_number_and_empty_files(tmp_path, views):
    cameras, _ = scene_files.write_colmap_binary(tmp_path, views, model=4711)
    with pytest.raises(UserError, match="unknown lens model number 4711"):
        open_scene(tmp_path)
    cameras.write_bytes(b"")
    with pytest.raises(UserError, match="cut off"):
        colmap_binary.read_cameras(cameras)
