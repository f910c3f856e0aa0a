"""Scenes: what is loaded, which frames are chosen, and that normalisation sees the chosen frames only."""

import json
import shutil
import time
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from data import UserError, bundled_scenes, open_scene
from data.batches import part_photos


def test_views_have_the_promised_shapes_and_ranges(capture):
    scene = open_scene(capture)
    views = scene.load([0, 3, 5], (16, 24))
    assert scene.name == "balls" and scene.format == "nerfstudio / instant-ngp" and len(scene) == 8
    assert views.images.shape == (3, 3, 16, 24) and views.images.dtype == torch.float32
    assert views.images.min() >= 0 and views.images.max() <= 1
    assert views.c2w.dtype == torch.float32 and views.image_size == (16, 24)
    assert views.world_to_scene is not None and views.world_to_scene.dtype == torch.float64
    np.testing.assert_array_equal(views.world_to_scene.numpy(), scene.world_to_scene)
    cameras = scene.cameras([0, 3, 5], (16, 24))
    assert torch.equal(cameras.c2w, views.c2w) and torch.equal(cameras.intrinsics, views.intrinsics)
    assert scene.warnings == () and scene.split == {}


def test_order_of_indices_is_kept(capture):
    scene = open_scene(capture)
    there, back = scene.load([2, 5], (12, 16)), scene.load([5, 2], (12, 16))
    assert torch.equal(there.images, back.images.flip(0)) and torch.equal(there.c2w, back.c2w.flip(0))


def test_opening_loads_no_pixels_and_is_quick(tmp_path, write_capture):
    """A thousand photos of 1 megapixel: their headers alone are read."""
    folder = write_capture(frames=1)
    noise = np.random.default_rng(0).integers(0, 255, (1000, 1000, 3), np.uint8)
    Image.fromarray(noise).save(folder / "images" / "big.png", compress_level=0)
    content = (folder / "transforms.json").read_text()
    entry = content[content.index("[{") + 1 : content.rindex("]}")]
    entries = []
    for i in range(1000):
        (folder / "images" / f"n{i}.png").hardlink_to(folder / "images" / "big.png")
        entries.append(entry.replace("000.png", f"n{i}.png"))
    content = content.replace(entry, ", ".join(entries)).replace('"w": 64, "h": 48', '"w": 1000, "h": 1000')
    (folder / "transforms.json").write_text(content)
    start = time.process_time()
    scene = open_scene(folder)
    seconds = time.process_time() - start
    assert len(scene) == 1000 and scene.cache.num_bytes == 0
    assert seconds < 5, f"{seconds:.1f} s of processor time"


def test_normalisation_sees_only_the_given_frames(capture):
    scene = open_scene(capture).normalize([0, 2, 4])
    others = scene.frames[1].c2w.copy()
    others[:3, 3] += 100
    moved = [*scene.frames]
    moved[1] = type(moved[1])(**{**vars(moved[1]), "c2w": others})
    shifted = type(scene)(**{**vars(scene), "frames": tuple(moved)}).normalize([0, 2, 4])
    np.testing.assert_array_equal(scene.world_to_scene, shifted.world_to_scene)
    assert not np.allclose(scene.world_to_scene, open_scene(capture).normalize([0, 1, 2, 4]).world_to_scene)
    distance = scene.cameras([0, 2, 4], (8, 8)).positions.norm(dim=-1).mean()
    assert abs(distance - 2.7) < 1e-5


def test_normalize_returns_a_copy_and_shares_the_photos(capture):
    scene = open_scene(capture)
    before = scene.world_to_scene.copy()
    other = scene.normalize([1, 2], "mean_pose")
    np.testing.assert_array_equal(scene.world_to_scene, before)
    assert (scene.normalization, other.normalization) == ("focus", "mean_pose") and other.cache is scene.cache
    np.testing.assert_array_equal(scene.normalize([0], "none").world_to_scene, np.eye(4))


def test_pixels_and_cameras_agree_after_normalisation(capture):
    """The world point that two cameras see as the red ball's centre is one point."""
    from kornia.geometry.epipolar import triangulate_points

    scene = open_scene(capture).normalize([0, 1, 2])
    views = scene.load([0, 1], (96, 96))
    red = (views.images[:, 0] > 0.75) & (views.images[:, 1] < 0.3) & (views.images[:, 2] < 0.3)
    centers = torch.stack([m.nonzero().float().mean(0).flip(0) + 0.5 for m in red])
    fx, fy, cx, cy = views.intrinsics.unbind(-1)
    k = torch.zeros(2, 3, 3)
    k[:, 0, 0], k[:, 1, 1], k[:, 0, 2], k[:, 1, 2], k[:, 2, 2] = fx, fy, cx, cy, 1
    p = k @ torch.linalg.inv(views.c2w)[:, :3]
    point = triangulate_points(p[:1], p[1:], centers[:1, None], centers[1:, None])[0, 0]
    expected = scene.world_to_scene @ np.array([0.5, 0.1, 0.1, 1.0])
    np.testing.assert_allclose(point.numpy(), expected[:3], atol=0.05)


def test_background_lies_behind_transparent_photos(write_capture):
    folder = write_capture(alpha=True)
    colors = {"white": (1, 1, 1), "black": (0, 0, 0), "255,0,0": (1, 0, 0)}
    loaded = {name: open_scene(folder, background=name).load([0], (48, 64)) for name in colors}
    for name, color in colors.items():
        views = loaded[name]
        assert views.images[0, :, 0, 0].tolist() == list(color) and views.alpha is not None
        assert views.alpha[0, 0, 0, 0] == 0 and views.alpha.max() == 1
        # white - picture = (1 - alpha) * (white - background), everywhere
        difference = loaded["white"].images - views.images
        expected = (1 - views.alpha) * (1 - torch.tensor(color).view(1, 3, 1, 1))
        torch.testing.assert_close(difference, expected.float(), atol=2.1 / 255, rtol=0)
    assert open_scene(write_capture("opaque")).load([0], (32, 32)).alpha is None


def test_choice_is_spread_repeatable_and_disjoint(capture):
    scene = open_scene(capture)
    inputs, targets = scene.choose(4)
    assert (inputs, targets) == open_scene(capture).choose(4)
    assert sorted(inputs + targets) == list(range(8)) and len(inputs) == 4
    gaps = np.diff([*inputs, inputs[0] + 8])
    assert gaps.max() <= 3
    assert len(scene.choose(3, 2)[1]) == 2 and scene.choose(8, 0) == (list(range(8)), [])


@pytest.mark.parametrize(
    ("split", "pool", "held_out"),
    [
        ({}, [0, 1, 2, 3, 4, 5, 6, 7], []),
        ({"train": [1, 4], "test": [0]}, [1, 4], [0]),
        ({"test": [0, 1, 3, 4, 6]}, [2, 5, 7], [0, 1, 3, 4, 6]),
        ({"val": [2]}, [0, 1, 3, 4, 5, 6, 7], [2]),
        ({"train": [1, 4]}, [1, 4], [0, 2, 3, 5, 6, 7]),
        ({"val": [2], "test": [5]}, [0, 1, 2, 3, 4, 6, 7], [5]),
        ({"test": list(range(8))}, [0, 1, 2, 3, 4, 5, 6, 7], []),
    ],
)
def test_inputs_come_from_the_pool(capture, split, pool, held_out):
    scene = replace(open_scene(capture), split=split)
    assert scene.input_pool == pool
    assert scene.choose(len(pool)) == (pool, held_out)
    with pytest.raises(UserError, match=f"has {len(pool)} frames"):
        scene.choose(len(pool) + 1)


@pytest.mark.parametrize(("every", "held_out"), [(0, []), (2, [1, 3, 5, 7]), (3, [1, 4, 7]), (8, [4]), (20, [])])
def test_every_kth_photo_is_held_out(capture, every, held_out):
    scene = open_scene(capture).hold_out(every)
    pool = [i for i in range(8) if i not in held_out]
    assert scene.input_pool == pool and scene.choose(4 if held_out else 8)[1] == held_out
    kept = part_photos(open_scene(capture), every)
    assert (kept.train, kept.held_out) == (pool, held_out)


def test_photos_that_the_files_hold_out_stay_the_ones(capture):
    for split in ({"train": [1, 4], "test": [0]}, {"val": [2]}, {"train": [0, 1, 2]}):
        scene = replace(open_scene(capture), split=split)
        assert scene.hold_out(2) is scene


@pytest.mark.parametrize(("inputs", "targets"), [(0, None), (9, None), (-1, 2), (4, 5), (4, -1)])
def test_impossible_choices_are_told(capture, inputs, targets):
    with pytest.raises(UserError, match="Ask for"):
        open_scene(capture).choose(inputs, targets)


def test_frames_that_do_not_exist_are_told(capture):
    scene = open_scene(capture)
    for call in (lambda: scene.load([8], (8, 8)), lambda: scene.cameras([-1], (8, 8)), lambda: scene.normalize([99])):
        with pytest.raises(UserError, match="frames 0 to 7"):
            call()
    with pytest.raises(UserError, match="on no frames"):
        scene.normalize([])


def test_missing_and_cut_photos_are_left_out_by_name(capture):
    (capture / "images" / "002.png").unlink()
    content = (capture / "images" / "005.png").read_bytes()
    (capture / "images" / "005.png").write_bytes(content[: len(content) // 2])
    scene = open_scene(capture)
    assert [f.name for f in scene.frames] == ["000.png", "001.png", "003.png", "004.png", "006.png", "007.png"]
    assert len(scene.warnings) == 1 and all(n in scene.warnings[0] for n in ("2 of 8", "002.png (missing)", "005.png"))
    with pytest.raises(UserError, match=r"002\.png"):
        open_scene(capture, strict=True)
    shutil.rmtree(capture / "images")
    with pytest.raises(UserError, match="no usable frame"):
        open_scene(capture)


def test_flipped_axes_are_noticed(capture):
    content = json.loads((capture / "transforms.json").read_text())
    for frame in content["frames"]:
        frame["transform_matrix"] = (np.array(frame["transform_matrix"]) * [1, -1, -1, 1]).tolist()
    (capture / "transforms.json").write_text(json.dumps(content))
    assert any("axes look flipped" in w for w in open_scene(capture).warnings)


def test_zip_is_opened_like_its_folder(capture, tmp_path):
    for name, top in (("flat", ""), ("nested", "balls/")):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            for file in capture.rglob("*"):
                archive.write(file, top + str(file.relative_to(capture)))
            archive.writestr("__MACOSX/._x", b"")
        scene = open_scene(tmp_path / f"{name}.zip")
        assert scene.name == name and len(scene) == 8
        assert torch.equal(scene.load([1], (16, 16)).images, open_scene(capture).load([1], (16, 16)).images)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", None])
def test_bad_zips_are_told(tmp_path, content):
    path = tmp_path / "a.zip"
    if content is None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("../../evil.txt", "x")
    else:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.zip") as caught:
        open_scene(path)
    assert "nvs-zip" not in str(caught.value)
    assert not (tmp_path.parent / "evil.txt").exists()


def test_bundled_captures_open_without_a_warning():
    scenes = {name: open_scene(path, strict=True) for name, path in bundled_scenes().items()}
    assert {"gso_toy", "skull"} <= set(scenes)
    for scene in scenes.values():
        assert set(scene.split) == {"train", "val", "test"}
        assert scene.load([0], (32, 32)).images.std() > 0.05


def test_many_missing_photos_are_named_in_part(write_capture):
    folder = write_capture(frames=12)
    for i in range(2, 10):
        (folder / f"images/{i:03d}.png").unlink()
    named = ", ".join(f"00{i}.png (missing)" for i in range(2, 7))
    assert open_scene(folder).warnings == (f"8 of 12 frames are left out: {named} and 3 more",)


def test_fox_misses_seventeen_photos(shared):
    scene = open_scene(shared / "pack/captures/fox")
    assert len(scene) == 50 and scene.warnings[0].startswith("17 of 67 frames are left out: 0005.jpg (missing)")
    assert scene.part_meeting_behind == 0
