"""Situations that users met, each rebuilt as a small capture, judged by a program that shares no code with ours."""

import json

import numpy as np
import pytest
from PIL import Image

from apps.inspect import dump_scene
from data import UserError, open_scene

CASES = {
    "01-blender-angle-only": "train/r_0",
    "02-per-frame-intrinsics-mixed-sizes": "0000.png",
    "06-dl3dv-downscaled-folder": "frame_00001.png",
    "07-dirty-image-folder": "frame_0000.png",
    "08-nan-inf-poses": "frame_000000.png",
}


@pytest.mark.parametrize("size", [None, (48, 48), (72, 56)])
@pytest.mark.parametrize("case", CASES)
def test_cameras_and_pixels_agree(shared, judge, tmp_path, case, size):
    scene = open_scene(shared / "cases" / case / "input")
    assert scene.frames[0].name == CASES[case]
    dump_scene(scene, tmp_path, size)
    report = judge.run(str(tmp_path), str(shared / "cases" / case / "expected.json"), quiet=True)
    assert report["verdict"], report
    assert report["missing_views"] == report["unexpected_views"] == []


def test_01_pixels_on_white_and_split(shared, tmp_path):
    case = shared / "cases/01-blender-angle-only"
    scene = open_scene(case / "input")
    assert scene.split == {"train": list(range(8)), "test": [8, 9]}
    np.testing.assert_allclose(scene.frames[0].intrinsics, (66.2450, 66.2450, 32, 24), atol=1e-3)
    dump_scene(scene, tmp_path)
    for view in json.loads((tmp_path / "cameras.json").read_text())["views"]:
        found = np.asarray(Image.open(tmp_path / view["image"])).astype(int)
        expected = np.asarray(Image.open(case / "expected" / f"{view['name']}_on_white.png").convert("RGB")).astype(int)
        assert np.abs(found - expected).max() <= 1
        assert (found[[0, 0, -1, -1], [0, -1, 0, -1]] == 255).all()


def test_02_mixed_sizes_load_as_one_batch(shared):
    scene = open_scene(shared / "cases/02-per-frame-intrinsics-mixed-sizes/input")
    expected = json.loads((shared / "cases/02-per-frame-intrinsics-mixed-sizes/expected.json").read_text())["views"]
    assert len({f.image_size for f in scene.frames}) == 5
    for frame, view in zip(scene.frames, expected, strict=True):
        np.testing.assert_allclose(frame.intrinsics, [view[k] for k in ("fx", "fy", "cx", "cy")])
    assert scene.load(range(8), (32, 32)).images.shape == (8, 3, 32, 32)


def test_06_names_the_folder_it_took(shared):
    scene = open_scene(shared / "cases/06-dl3dv-downscaled-folder/input")
    assert any("images_4" in note for note in scene.notes)
    assert scene.frames[0].intrinsics == (59.0, 58.8, 32.15, 17.775)


def test_07_names_missing_and_cut_photos(shared):
    folder = shared / "cases/07-dirty-image-folder/input"
    scene = open_scene(folder)
    assert len(scene) == 6 and len(scene.warnings) == 1
    assert "frame_0002.png (missing)" in scene.warnings[0] and "frame_0005.png (unreadable" in scene.warnings[0]
    with pytest.raises(UserError, match="frame_0002"):
        open_scene(folder, strict=True)
    with pytest.raises(UserError, match="no usable frame"):
        open_scene(folder / "all_missing")


def test_08_names_bad_poses(shared):
    scene = open_scene(shared / "cases/08-nan-inf-poses/input")
    (warning,) = scene.warnings
    assert all(f"frame_00000{i}.png" in warning for i in (2, 5, 6)) and warning.startswith("3 of 9")
    assert np.isfinite(scene.world_to_scene).all()


def test_09_pixel_formats(shared):
    case = shared / "cases/09-image-modes"
    scene = open_scene(case / "input", background="white")
    assert scene.warnings == () and len(scene) == 9
    allowed = {
        x["name"]: x["max_abs_diff_allowed_mean"] for x in json.loads((case / "expected.json").read_text())["images"]
    }
    for i, frame in enumerate(scene.frames):
        expected = np.asarray(Image.open((case / "expected" / frame.name).with_suffix(".png")).convert("RGB"))
        found = scene.load([i], frame.image_size).images[0].permute(1, 2, 0).numpy() * 255
        assert np.abs(found - expected).mean() <= allowed[frame.name], frame.name
