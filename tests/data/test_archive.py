"""Captures in a .zip: damaged ones are told, and none reaches files outside of itself."""

import json
import shutil
import zipfile

import pytest

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
