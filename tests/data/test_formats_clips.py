"""RealEstate10K clips, chunks of pixelSplat, LLFF, DL3DV and lists of captures."""

import io
import json
import pickle
import shutil
import zipfile

import numpy as np
import pytest
import scene_files
import torch
from PIL import Image

from apps.inspect import dump_scene
from data import UserError, list_scenes, open_scene


@pytest.fixture
def views():
    return [scene_files.random_view(f"{n}.png", np.random.default_rng(n)) for n in (1000, 200, 30)]


def test_case_10(shared, judge, tmp_path):
    case = shared / "cases/10-re10k-clip"
    scene = open_scene(case / "input")
    assert scene.format == "RealEstate10K" and len(scene) == 8
    assert scene.warnings == ("2 of 10 frames are left out: 40140101 (missing), 40273569 (missing)",)
    np.testing.assert_allclose(scene.frames[0].intrinsics, (59.52, 59.52, 32, 18), atol=1e-5)
    dump_scene(scene, tmp_path)
    report = judge.run(str(tmp_path), str(case / "expected.json"), quiet=True)
    assert report["verdict"] and report["missing_views"] == report["unexpected_views"] == [], report
    assert report["known_points_median_px"] < 0.1


@pytest.mark.parametrize("sample", ["re10k_converted", "pixelsplat_torch", "llff"])
def test_samples_show_the_cameras_of_the_model_they_come_from(shared, sample):
    """The same photos as the COLMAP sample; LLFF knows no principal point."""
    reference = open_scene(shared / "pack/formats/colmap_binary_pinhole_undistorted")
    scene = open_scene(shared / "pack/formats" / sample)
    assert len(scene) == 8 and not scene.warnings
    for a, b in zip(scene.frames, reference.frames, strict=True):
        np.testing.assert_allclose(a.c2w, b.c2w, atol=1e-5)
        np.testing.assert_allclose(a.intrinsics, b.intrinsics, atol=0.1 if sample == "llff" else 1e-4)
    pixels = [s.load([2], (84, 127)).images for s in (scene, reference)]
    assert (pixels[0] - pixels[1]).abs().mean() < 0.02


@pytest.mark.parametrize(
    ("cameras", "frames"),
    [
        ("clip.txt", "clip"),
        ("cameras/clip.txt", "frames/clip"),
        ("poses/clip.txt", "images/clip"),
        ("RealEstate10K/clip.txt", "rgb/clip"),
        ("test/clip.txt", "frames/test/clip"),
        ("cameras/clip.txt", "clip"),
        ("clip.txt", "frames"),
        ("clip.txt", "."),
    ],
)
def test_re10k_layouts(tmp_path, views, cameras, frames):
    scene_files.write_re10k(tmp_path, views)
    (tmp_path / "clip").rename(tmp_path / "photos")
    (tmp_path / "clip.txt").rename(tmp_path / "text")
    for target in (cameras, frames):
        (tmp_path / target).parent.mkdir(exist_ok=True, parents=True)
    (tmp_path / "text").rename(tmp_path / cameras)
    if frames == ".":
        for photo in (tmp_path / "photos").iterdir():
            photo.rename(tmp_path / photo.name)
    else:
        (tmp_path / "photos").rename(tmp_path / frames)
    scene_files.check_same(open_scene(tmp_path), views)
    scene_files.check_same(open_scene(tmp_path / cameras), views)


def test_re10k_without_an_address_with_bad_rows_and_padded_stamps(tmp_path, views):
    scene_files.write_re10k(tmp_path, views)
    lines = (tmp_path / "clip.txt").read_text().split("\n")[1:]
    (tmp_path / "clip/200.png").rename(tmp_path / "clip/000200.png")
    lines[2:] = ["30 1 2 3", "40 " + "nan " * 18, ""]
    (tmp_path / "clip.txt").write_text("\n".join(lines))
    scene = open_scene(tmp_path)
    assert [f.name for f in scene.frames] == ["000200.png", "1000.png"]
    assert "line 3 (not a row of 19 numbers)" in scene.warnings[0] and "NaN" in scene.warnings[0]


def test_a_clip_without_photos_says_what_to_do(shared):
    with pytest.raises(UserError, match=r"no folder 0bf152ef84195293 with photos.*time stamps"):
        open_scene(shared / "pack/formats/re10k_genuine")


def test_several_clips_and_chunks_ask_for_one(tmp_path, views):
    for name in ("a", "b"):
        scene_files.write_re10k(tmp_path, views)
        (tmp_path / "clip").rename(tmp_path / name)
        (tmp_path / "clip.txt").rename(tmp_path / f"{name}.txt")
    with pytest.raises(UserError, match=r"\(RealEstate10K\) holds 2 scenes \(a.txt, b.txt\). Give one"):
        open_scene(tmp_path)
    assert [len(open_scene(path)) for path in list_scenes(tmp_path)] == [3, 3]
    chunks = tmp_path / "chunks"
    (chunks / "test").mkdir(parents=True)
    (clip,) = torch.load(scene_files.write_torch(tmp_path, views)[0], weights_only=True)
    torch.save([clip, {**clip, "key": "other"}], chunks / "test/000000.torch")
    with pytest.raises(UserError, match=r"2 scenes \(test/000000.torch/clip, test/000000.torch/other\)"):
        open_scene(chunks)
    scene = open_scene(chunks / "test/000000.torch/other")
    assert scene.name == "other" and len(scene) == 3
    assert [p.name for p in list_scenes(chunks / "test/000000.torch")] == ["clip", "other"]
    (chunks / "test/index.json").write_text(json.dumps({"other": "000000.torch"}))
    assert [p.name for p in list_scenes(chunks)] == ["other"] and len(open_scene(chunks)) == 3


class Harmful:
    def __reduce__(self):
        return (open, ("harm.txt", "w"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda clip: {**clip, "cameras": clip["cameras"][:2]}, r"cameras of shape \(2, 18\)"),
        (lambda clip: {**clip, "cameras": clip["cameras"][:, :9]}, r"not N x 18"),
        (lambda clip: {**clip, "cameras": None}, "no images and cameras"),
        (lambda clip: {**clip, "images": 7}, "no images and cameras"),
        (lambda clip: {**clip, "images": [torch.zeros(9, dtype=torch.uint8)] * 3}, "not the bytes of a photo"),
        (lambda clip: {**clip, "images": [clip["images"][0][:1].expand(2**50)] * 3}, "not the bytes of a photo"),
        (lambda clip: {**clip, "images": clip["images"][:1] * 3, "cameras": clip["cameras"] * float("nan")}, "NaN"),
        (lambda clip: Harmful(), "more than plain tensors"),
    ],
)
def test_chunks_are_not_trusted(tmp_path, views, change, reason, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (file,) = scene_files.write_torch(tmp_path, views)
    (clip,) = torch.load(file, weights_only=True)
    torch.save([change(clip)], file)
    with pytest.raises(UserError, match=reason):
        open_scene(file)
    assert not (tmp_path / "harm.txt").exists()


def test_other_files_called_torch(tmp_path, views):
    file = tmp_path / "a.torch"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickle.dumps([1] * 1000))
    with pytest.raises(UserError, match="compressed"):
        open_scene(file)
    for content in (b"", b"noise", pickle.dumps([1])):
        file.write_bytes(content)
        with pytest.raises(UserError, match="cut off, damaged"):
            open_scene(file)
    torch.save({"key": "x"}, file)
    with pytest.raises(UserError, match="no list of clips"):
        open_scene(file)


@pytest.mark.parametrize("folder", ["images", "images_2", "images_8"])
def test_llff_takes_the_folder_that_has_as_many_photos(tmp_path, views, folder):
    scene_files.write_llff(tmp_path, views)
    factor = int(folder.partition("_")[2] or 1)
    if factor > 1:
        (tmp_path / "images/200.png").unlink()
        size = (12 // factor, 16 // factor)
        scene_files.write_photos(tmp_path / folder, [v.name for v in views], size)
    scene = open_scene(tmp_path)
    assert [f.name for f in scene.frames] == ["30.png", "200.png", "1000.png"]
    by_name = {v.name: v for v in views}
    for frame in scene.frames:
        np.testing.assert_allclose(frame.c2w, by_name[frame.name].c2w, rtol=1e-9)
        assert abs(frame.intrinsics[0] - 14.5 / factor) < 1e-9 and frame.path.parent.name == folder
    assert any(folder in note for note in scene.notes) == (factor > 1)


def test_llff_refuses_to_guess(tmp_path, views):
    scene_files.write_llff(tmp_path, views)
    (tmp_path / "images/200.png").unlink()
    with pytest.raises(UserError, match="has 3 poses but images holds 2: poses and photos are paired by order"):
        open_scene(tmp_path)


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((3, 15)), r"shape \(3, 15\)"),
        (np.zeros(17), r"shape \(17,\)"),
        (np.array([[None] * 17] * 3), "type object"),
        (np.array([["a"] * 17] * 3), "type <U1"),
    ],
)
def test_llff_arrays_of_another_kind(tmp_path, views, array, reason):
    (file,) = scene_files.write_llff(tmp_path, views)
    np.save(file, array)
    with pytest.raises(UserError, match=reason):
        open_scene(tmp_path)


def test_llff_headers_are_not_believed(tmp_path, views):
    (file,) = scene_files.write_llff(tmp_path, views)
    whole = file.read_bytes()
    for content in (whole.replace(b"(3, 17)", b"(9999999, 17)"), whole[:200], b"", b"\x93NUMPY\x01\x00\xff\xff{"):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"no whole \.npy file"):
            open_scene(tmp_path)


def test_llff_by_columns_and_in_single_precision(tmp_path, views):
    (file,) = scene_files.write_llff(tmp_path, views)
    rows = np.load(file)
    np.save(file, np.asfortranarray(rows.astype(">f4")))
    expected = {v.name: v.c2w for v in views}
    for frame in open_scene(file).frames:
        np.testing.assert_allclose(frame.c2w, expected[frame.name], rtol=1e-4, atol=1e-4)


def test_dl3dv_benchmark_folder(shared, tmp_path):
    shutil.copytree(shared / "cases/06-dl3dv-downscaled-folder/input", tmp_path / "hash/nerfstudio")
    scene = open_scene(tmp_path / "hash")
    assert scene.format == "DL3DV" and len(scene) == 8 and any("images_4" in note for note in scene.notes)


def test_lists_name_their_scenes_and_where_they_start(tmp_path, views):
    for file in scene_files.write_list(tmp_path, views):
        with pytest.raises(UserError, match=r"\(list of captures\) holds 2 scenes \(one"):
            open_scene(file)
        assert [len(open_scene(path)) for path in list_scenes(file)] == [3, 3]
    (tmp_path / "lists/v1").mkdir(parents=True)
    inner = tmp_path / "lists/v1/train.txt"
    inner.write_text("# scenes\n\none/opencv_cameras.json\n")
    assert len(open_scene(inner)) == 3
    inner.write_text("gone/opencv_cameras.json\n")
    with pytest.raises(UserError, match=r"gone/opencv_cameras.json does not exist"):
        open_scene(inner)
    inner.write_text("train.txt\n")
    with pytest.raises(UserError, match="names only another list"):
        open_scene(inner)


def test_the_list_of_lvsm(shared):
    scene = open_scene(shared / "pack/formats/lvsm_json/full_list.txt")
    assert scene.format == "LVSM" and len(scene) == 8


def test_a_zip_of_a_clip_and_of_a_model(tmp_path, views):
    for name, write in (("clip", scene_files.write_re10k), ("model", scene_files.write_colmap_binary)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, views)
        shutil.make_archive(str(tmp_path / f"{name}-packed"), "zip", tmp_path / name)
        scene_files.check_same(open_scene(tmp_path / f"{name}-packed.zip"), views)


def test_photos_in_a_chunk_may_be_png(tmp_path, views):
    (file,) = scene_files.write_torch(tmp_path, views)
    (clip,) = torch.load(file, weights_only=True)
    buffer = io.BytesIO()
    Image.new("RGB", (16, 12), (1, 2, 3)).save(buffer, format="PNG")
    clip["images"] = [torch.tensor(list(buffer.getvalue()), dtype=torch.uint8)] * 3
    torch.save([clip], file)
    assert (open_scene(file).load([0], (12, 16)).images[:, :, 0, 0] * 255).round().tolist() == [[1, 2, 3]]
