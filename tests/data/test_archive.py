"""Captures in a .zip: damaged ones are told, and none reaches files outside of itself."""

import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scene_files
import torch

from data import UserError, open_scene


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_stream_is_told(tmp_path, method):
    file = tmp_path / "capture.zip"
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("transforms.json", json.dumps(list(range(5000))))
    content = bytearray(file.read_bytes())
    content[60:2000] = b"\xff" * 1940
    file.write_bytes(content)
    with pytest.raises(UserError, match="cannot be unpacked"):
        open_scene(file)


@pytest.mark.parametrize("how", ["absolute", "upwards"])
def test_archive_does_not_reach_photos_outside_of_it(capture, tmp_path, how):
    content = json.loads((capture / "transforms.json").read_text())
    start = str(capture) if how == "absolute" else "../" * 12 + str(capture).lstrip("/")
    frames = [{**f, "file_path": f"{start}/{f['file_path']}"} for f in content["frames"]]
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "transforms.json").write_text(json.dumps({**content, "frames": frames}))
    shutil.make_archive(str(tmp_path / "outside"), "zip", outside)
    assert len(open_scene(outside)) == 8  # a folder is the user's own and may name photos anywhere
    with pytest.raises(UserError, match="outside of the archive"):
        open_scene(tmp_path / "outside.zip")


def test_dots_that_stay_inside_the_archive_are_taken(capture, tmp_path):
    content = json.loads((capture / "transforms.json").read_text())
    frames = [{**f, "file_path": f"../balls/{f['file_path']}"} for f in content["frames"]]
    (capture / "transforms.json").write_text(json.dumps({**content, "frames": frames}))
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "balls")
    shutil.rmtree(capture)
    assert len(open_scene(tmp_path / "packed.zip")) == 8


def test_one_of_several_captures_in_an_archive(write_capture, tmp_path):
    for name in ("left", "right"):
        write_capture(f"set/{name}", frames=3)
    archive = Path(shutil.make_archive(str(tmp_path / "set"), "zip", tmp_path / "set"))
    with pytest.raises(UserError, match=r"set\.zip .* holds 2 \(left, right\)\. .* such as .*set\.zip/left\."):
        open_scene(archive)
    scene = open_scene(archive / "right")
    assert (scene.name, len(scene)) == ("right", 3)
    with pytest.raises(UserError, match=r"set\.zip/up does not exist"):
        open_scene(archive / "up")
    for outside in ("..", "left/../../..", "../left"):
        with pytest.raises(UserError, match="leads out of the archive"):
            open_scene(archive / outside)


@pytest.mark.parametrize("name", [n for n in scene_files.WRITERS if n not in ("scene_lists", "zip")])
def test_captures_of_every_format_open_out_of_an_archive(tmp_path, name):
    (tmp_path / "set").mkdir()
    scene_files.WRITERS[name](
        tmp_path / "set", [scene_files.random_view(f"{i}00.png", np.random.default_rng(i)) for i in range(1, 4)]
    )
    shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "set")
    outside, inside = open_scene(tmp_path / "set"), open_scene(tmp_path / "packed.zip")
    assert inside.format == outside.format
    assert torch.equal(inside.load(range(3), (8, 8)).images, outside.load(range(3), (8, 8)).images)
    np.testing.assert_array_equal(inside.world_c2w, outside.world_c2w)
