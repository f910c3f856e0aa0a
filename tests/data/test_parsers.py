"""Formats: the dialects of transforms.json, and that all formats tell the same story about the same capture."""

import json

import numpy as np
import pytest
from PIL import Image

from data import UserError, open_scene

POSES = [np.diag([1.0, -1, -1, 1]), np.array([[0, 0, 1, 2], [0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1.0]])]


@pytest.fixture
def write(tmp_path):
    """Write photos of 64x48 pixels (width x height) and a transforms.json with the given keys."""

    def write(top=None, frame=None, size=(64, 48), folder="images", **overrides):
        (tmp_path / folder).mkdir(exist_ok=True)
        frames = []
        for i, pose in enumerate(POSES):
            Image.new("RGB", size, (i * 90, 80, 80)).save(tmp_path / folder / f"{i}.png")
            frames.append({"file_path": f"images/{i}.png", "transform_matrix": pose.tolist(), **(frame or {})})
        content = {"w": 64, "h": 48, "fl_x": 60, "cx": 31, "cy": 25, **(top or {}), "frames": frames, **overrides}
        content = {k: v for k, v in content.items() if v is not None}
        (tmp_path / "transforms.json").write_text(json.dumps(content))
        return tmp_path

    return write


def first(folder):
    return open_scene(folder).frames[0]


def test_opengl_matrices_become_opencv(write):
    frames = open_scene(write()).frames
    np.testing.assert_allclose(frames[0].c2w, np.eye(4))
    # A camera at x=2 that looks along -x in OpenGL's sense (its -z axis) has OpenCV's z axis there.
    np.testing.assert_allclose(frames[1].c2w[:3, 2], -POSES[1][:3, 2])
    np.testing.assert_allclose(frames[1].c2w[:3, 1], -POSES[1][:3, 1])
    np.testing.assert_allclose(frames[1].c2w[:3, 3], [2, 0, 0])


@pytest.mark.parametrize(
    ("top", "frame", "expected"),
    [
        ({}, {}, (60, 60, 31, 25)),
        ({"fl_y": 61}, {}, (60, 61, 31, 25)),
        ({"fl_y": 61}, {"fl_x": 70}, (70, 61, 31, 25)),
        ({"cx": None, "cy": None}, {}, (60, 60, 32, 24)),
        ({"cx": None}, {"cx": 30}, (60, 60, 30, 25)),
        ({"fl_x": None, "camera_angle_x": 0.9}, {}, (66.245, 66.245, 31, 25)),
        ({"fl_x": None, "camera_angle_x": 0.9, "camera_angle_y": 0.7}, {}, (66.245, 65.749, 31, 25)),
        ({"fl_x": None, "camera_angle_y": 0.7}, {}, (65.749, 65.749, 31, 25)),
        ({"camera_angle_x": 0.9}, {}, (60, 60, 31, 25)),
        ({"fl_y": 99}, {"camera_angle_x": 0.9}, (66.245, 66.245, 31, 25)),
        ({"w": None, "h": None}, {}, (60, 60, 31, 25)),
        ({"w": 128, "h": 96}, {}, (30, 30, 15.5, 12.5)),
        ({"w": 128, "h": 96}, {"fl_x": 62, "fl_y": 62}, (31, 31, 15.5, 12.5)),
        ({"w": 640, "h": 400}, {"fl_x": 62, "fl_y": 63, "cx": 30, "cy": 20}, (62, 63, 30, 20)),
        ({"w": 32, "h": 48}, {"w": 128, "h": 96}, (30, 30, 15.5, 12.5)),
    ],
)
def test_numbers_come_from_frame_then_file_then_photo(write, top, frame, expected):
    np.testing.assert_allclose(first(write(top, frame)).intrinsics, expected, atol=1e-3)


def test_numbers_for_another_size_are_told(write):
    scene = open_scene(write({"w": 128, "h": 96}, size=(32, 24)))
    assert any("camera numbers for 128x96 scaled to the 32x24 of the photo" in note for note in scene.notes)
    assert not any("camera numbers for" in note for note in open_scene(write()).notes)


def test_missing_numbers_are_named(write):
    with pytest.raises(UserError, match=r"no focal length \(fl_x\) and no field of view \(camera_angle_x\)"):
        open_scene(write({"fl_x": None}))


def test_downscaled_folder_scales_numbers_and_is_named(write):
    folder = write(size=(16, 12), folder="images_4")
    scene = open_scene(folder)
    np.testing.assert_allclose(scene.frames[0].intrinsics, (15, 15, 7.75, 6.25))
    assert any("images_4" in note for note in scene.notes) and not scene.warnings
    write({"w": None, "h": None, "fl_x": None, "camera_angle_x": 0.9, "cx": None, "cy": None}, size=(16, 12))
    np.testing.assert_allclose(first(folder).intrinsics, (16.561, 16.561, 8, 6), atol=1e-3)


@pytest.mark.parametrize(
    ("top", "model", "parameters"),
    [
        ({}, "none", ()),
        ({"k1": 0, "k2": 0.0, "camera_model": "OPENCV"}, "none", ()),
        ({"k1": 0.1, "p2": 0.01}, "opencv", (0.1, 0, 0, 0.01, 0, 0, 0, 0)),
        ({"k1": 0.1, "k3": 0.02, "k4": 0.03, "camera_model": "OPENCV"}, "opencv", (0.1, 0, 0, 0, 0.02, 0.03, 0, 0)),
        ({"k1": 0.1, "k4": 0.03, "camera_model": "OPENCV_FISHEYE"}, "fisheye", (0.1, 0, 0, 0.03)),
        ({"is_fisheye": True}, "fisheye", (0, 0, 0, 0)),
    ],
)
def test_lens_models(write, top, model, parameters):
    lens = first(write(top)).distortion
    assert (lens.model, lens.parameters) == (model, parameters)


@pytest.mark.parametrize("model", ["EQUIRECTANGULAR", "FISHEYE624", "OMNIDIRECTIONALSTEREO_L"])
def test_other_lens_models_are_refused_by_name(write, model):
    with pytest.raises(UserError, match=model):
        open_scene(write({"camera_model": model}))


def test_lens_of_a_frame_beats_that_of_the_file(write):
    lens = first(write({"k1": 0.1, "k2": 0.01}, {"k1": -0.05})).distortion
    assert lens.parameters[:2] == (-0.05, 0.01)


def test_applied_transform_and_foreign_keys_change_nothing(write):
    plain = open_scene(write())
    flip = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, -1, 0]]
    extra = {"applied_transform": flip, "applied_scale": 3, "aabb_scale": 16, "ply_file_path": "points.ply", "scale": 2}
    other = open_scene(write(extra))
    for a, b in zip(plain.frames, other.frames, strict=True):
        np.testing.assert_array_equal(a.c2w, b.c2w)
    assert other.warnings == ()
    assert sum("aabb_scale" in note for note in other.notes) == 1


def test_split_of_nerfstudio(write):
    scene = open_scene(write(train_filenames=["images/1.png"], test_filenames=["images/0.png"]))
    assert scene.split == {"train": [1], "test": [0]}


@pytest.mark.parametrize("name", ["./images/0.png", "images/0", "images\\0.png"])
def test_split_finds_photos_that_are_written_otherwise(write, name):
    scene = open_scene(write(train_filenames=["images/1"], test_filenames=[name]))
    assert scene.split == {"train": [1], "test": [0]} and not scene.warnings


def test_split_names_without_a_frame_are_told(write):
    scene = open_scene(write(train_filenames=["images/1.png"], test_filenames=["photos/0.png", "photos/7.png"]))
    assert any("2 names of no frame, the first photos/0.png" in told for told in scene.warnings)


def test_order_is_natural_and_by_name(tmp_path):
    frames = []
    for i in (10, 9, 2, 1):
        Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / f"f{i}.png")
        frames.append({"file_path": f"f{i}.png", "transform_matrix": (np.eye(4) + np.eye(4, k=3) * i).tolist()})
    (tmp_path / "transforms.json").write_text(json.dumps({"fl_x": 9, "frames": frames}))
    scene = open_scene(tmp_path)
    assert [f.name for f in scene.frames] == ["f1.png", "f2.png", "f9.png", "f10.png"]
    assert [f.c2w[0, 3] for f in scene.frames] == [1, 2, 9, 10]
    red = scene.load(range(4), (8, 8)).images[:, 0, 0, 0] * 255
    assert red.round().tolist() == [1, 2, 9, 10]


def test_names_keep_folders_that_differ(tmp_path):
    frames = []
    for side in ("left", "right"):
        (tmp_path / "images" / side).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / side / "0.png")
        frames.append({"file_path": f"images/{side}/0.png", "transform_matrix": np.eye(4).tolist()})
    (tmp_path / "transforms.json").write_text(json.dumps({"fl_x": 9, "frames": frames}))
    assert [f.name for f in open_scene(tmp_path).frames] == ["images/left/0.png", "images/right/0.png"]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        ({"transform_matrix": None}, "matrix"),
        ({"transform_matrix": "eye"}, "not a matrix of numbers"),
        ({"transform_matrix": [[1, 2], [3]]}, "not a matrix of numbers"),
        ({"transform_matrix": np.eye(3).tolist()}, r"shape \(3, 3\)"),
        ({"transform_matrix": (np.eye(4) * [1, 1, 1, np.nan]).tolist()}, "NaN"),
        ({"transform_matrix": (np.eye(4) * 1e300).tolist()}, "beyond"),
        ({"transform_matrix": np.diag([0, 0, 0, 1]).tolist()}, "zero rotation"),
        ({"transform_matrix": np.diag([1, 1, -1, 1]).tolist()}, "mirrored"),
        ({"transform_matrix": np.diag([1, 2, 1, 1]).tolist()}, "sheared"),
        ({"transform_matrix": (np.eye(4) + 5 * np.eye(4, k=-3)).tolist()}, "bottom row"),
        ({"file_path": 7}, "no file_path"),
        ({"file_path": None}, "no file_path"),
        ({"file_path": "images/none.png"}, "missing"),
        ({"fl_x": "wide"}, "fl_x is not a number"),
        ({"fl_x": float("nan")}, "fl_x is not a number"),
        ({"fl_x": True}, "fl_x is not a number"),
        ({"fl_x": 10**400}, "too large"),
        ({"fl_x": 0}, "impossible camera numbers"),
        ({"fl_x": -60}, "impossible camera numbers"),
        ({"fl_x": 1.1}, "divided by the width"),
        ({"camera_angle_x": 0}, "field of view"),
        ({"camera_angle_x": 3.2}, "field of view"),
        ({"w": 0, "h": 48}, "impossible size"),
        ({"cx": 1e9}, "far outside"),
        ({"k1": -80}, "onto itself"),
        ({"k1": float("inf")}, "too large"),
        ({"camera_model": ["OPENCV"]}, "is not read"),
    ],
)
def test_a_bad_frame_is_left_out_with_its_reason(write, frame, reason):
    folder = write()
    content = json.loads((folder / "transforms.json").read_text())
    content["frames"][1].update(frame)
    (folder / "transforms.json").write_text(json.dumps(content))
    scene = open_scene(folder)
    assert [f.name for f in scene.frames] in (["0.png"], ["images/0.png"])
    assert len(scene.warnings) == 1
    with pytest.raises(UserError, match=reason):
        open_scene(folder, strict=True)
    assert scene.warnings[0].startswith("1 of 2 frames")


def test_slightly_rounded_and_scaled_rotations_are_repaired(write):
    pose = np.diag([1.0, -1, -1, 1]).round(3)
    pose[:3, :3] = pose[:3, :3] * 2.5 + 1e-3
    frame = first(write(frame={"transform_matrix": pose.tolist()}))
    np.testing.assert_allclose(frame.c2w[:3, :3] @ frame.c2w[:3, :3].T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(frame.c2w[:3, :3], np.eye(3), atol=2e-3)


@pytest.mark.parametrize("content", ["[]", "{}", '{"frames": {}}', '{"frames": "no"}', "7", "null", '{"frames": [3]}'])
def test_files_of_another_make_are_told(tmp_path, content):
    (tmp_path / "transforms.json").write_text(content)
    with pytest.raises(UserError, match=r"frames|no usable frame"):
        open_scene(tmp_path)


def test_a_frame_listed_twice_counts_once(write):
    folder = write()
    content = json.loads((folder / "transforms.json").read_text())
    content["frames"].append(content["frames"][0])
    (folder / "transforms.json").write_text(json.dumps(content))
    scene = open_scene(folder)
    assert len(scene) == 2 and "listed twice" in scene.warnings[0]


def test_a_photo_of_another_shape_is_told(write):
    scene = open_scene(write(size=(48, 64)))
    assert "declared as 64x48 but the photo is 48x64" in scene.warnings[0]


@pytest.mark.parametrize("sample", ["nerfstudio_per_frame", "lvsm_json"])
def test_formats_agree_on_the_same_photos(shared, sample):
    """The same capture in three formats; nerfstudio_per_frame has the same cameras as nerfstudio_opencv."""
    reference = open_scene(shared / "pack/formats/nerfstudio_opencv")
    other = open_scene(shared / f"pack/formats/{sample}")
    assert [f.name for f in other.frames] == [f.name for f in reference.frames] and len(other) == 8
    if sample == "nerfstudio_per_frame":
        for a, b in zip(reference.frames, other.frames, strict=True):
            np.testing.assert_allclose(a.intrinsics, b.intrinsics)
            assert a.distortion == b.distortion and a.distortion.model == "opencv"
    # The worlds differ; distances between cameras up to scale and turns between them do not (two bundle adjustments).
    centers = [np.stack([f.c2w[:3, 3] for f in s.frames]) for s in (reference, other)]
    pairs = [np.linalg.norm(c[:, None] - c, axis=-1) for c in centers]
    np.testing.assert_allclose(pairs[0] / pairs[0].max(), pairs[1] / pairs[1].max(), atol=0.01)
    turns = [np.stack([s.frames[0].c2w[:3, :3].T @ f.c2w[:3, :3] for f in s.frames]) for s in (reference, other)]
    np.testing.assert_allclose(turns[0], turns[1], atol=0.01)


def test_lact_sample_has_the_numbers_of_its_file(shared):
    folder = shared / "pack/formats/lact_opencv_cameras"
    scene = open_scene(folder)
    listed = json.loads((folder / "opencv_cameras.json").read_text())
    assert scene.format == "LaCT opencv_cameras" and len(scene) == len(listed) == 8
    assert scene.frames[0].name == "00000000_rgba.png"
    for frame, entry in zip(scene.frames, listed, strict=True):
        np.testing.assert_allclose(frame.c2w @ np.array(entry["w2c"]), np.eye(4), atol=1e-6)
        np.testing.assert_allclose(frame.intrinsics, [entry[k] for k in ("fx", "fy", "cx", "cy")])
    assert scene.load([0], (64, 64)).alpha is not None


def test_blender_sample_keeps_its_split(shared):
    scene = open_scene(shared / "pack/formats/blender_synthetic")
    assert {k: len(v) for k, v in scene.split.items()} == {"train": 8, "val": 2, "test": 3}
    assert scene.frames[0].name == "train/r_0" and scene.frames[-1].name == "test/r_2"
    inputs, targets = scene.choose(4)
    assert set(inputs) <= set(scene.split["train"]) and targets == scene.split["test"]


def test_blender_files_beside_a_transforms_file(write):
    folder = write()
    text = (folder / "transforms.json").read_text()
    (folder / "transforms_test.json").write_text(text)
    assert open_scene(folder).format == "nerfstudio / instant-ngp"
    (folder / "transforms_train.json").write_text(text)
    scene = open_scene(folder)
    assert scene.format == "Blender" and any("also holds nerfstudio" in note for note in scene.notes)
    assert open_scene(folder / "transforms.json").format == "nerfstudio / instant-ngp"


def test_several_lvsm_scenes_ask_for_one(shared, tmp_path):
    source = (shared / "pack/formats/lvsm_json/metadata/skull0001.json").read_text()
    (tmp_path / "metadata").mkdir()
    for name in "ab":
        (tmp_path / "metadata" / f"{name}.json").write_text(source)
    with pytest.raises(UserError, match=r"2 scenes \(metadata/a.json, metadata/b.json\)"):
        open_scene(tmp_path)
    (tmp_path / "images").symlink_to(shared / "pack/formats/lvsm_json/images")
    assert len(open_scene(tmp_path / "metadata" / "a.json")) == 8


@pytest.mark.parametrize("place", ["empty", "photos", "missing", "readme.txt", "other.json"])
def test_unknown_places_say_what_to_give(tmp_path, place):
    path = tmp_path / place
    if place in ("empty", "photos"):
        path.mkdir()
    if place == "photos":
        Image.new("RGB", (4, 4)).save(path / "a.png")
    if "." in place:
        path.write_text("[1]")
    with pytest.raises(UserError) as caught:
        open_scene(path)
    text = str(caught.value)
    assert "\n" not in text and str(path) in text
    assert text.count(". ") <= 1 and len(text) < 260 + len(str(path))
    expected = {"missing": "does not exist", "empty": "empty folder", "photos": "nvs prepare"}
    assert expected.get(place, "transforms.json") in text


def test_a_capture_one_folder_down_is_pointed_out(capture):
    with pytest.raises(UserError, match="its folder balls is one"):
        open_scene(capture.parent)


def test_photos_in_a_folder_below_are_seen_too(tmp_path):
    (tmp_path / "walk/day one").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "walk/day one/a.JPG", format="JPEG")
    for place in ("walk", "walk/day one"):
        with pytest.raises(UserError, match=r"holds photos, .* nvs prepare"):
            open_scene(tmp_path / place)
    with pytest.raises(UserError, match="is a single picture"):
        open_scene(tmp_path / "walk/day one/a.JPG")
