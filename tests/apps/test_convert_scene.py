"""`nvs convert` on captures, as a person types it."""

import json

import numpy as np
import pytest
import scene_files

from apps.cli import main
from data import open_scene


def run(*words):
    return main([str(word) for word in words])


@pytest.mark.parametrize(
    ("to", "file"),
    [("transforms", "transforms.json"), ("colmap", "sparse/0/images.bin"), ("opencv-json", "opencv_cameras.json")],
)
def test_capture_to_each_format(capture, tmp_path, capsys, to, file):
    assert run("convert", capture, tmp_path / "out", "--to", to) == 0
    assert f"nerfstudio / instant-ngp as {to}, 8 photos copied" in capsys.readouterr().out
    assert (tmp_path / "out" / file).is_file()
    for a, b in zip(open_scene(capture).frames, open_scene(tmp_path / "out").frames, strict=True):
        np.testing.assert_allclose(a.c2w, b.c2w, atol=1e-9)
        assert a.path.read_bytes() == b.path.read_bytes()


def test_what_is_lost_is_told(capture, tmp_path, capsys):
    content = json.loads((capture / "transforms.json").read_text())
    content.update(k1=0.05, camera_model="OPENCV", test_filenames=["images/000.png"])
    (capture / "transforms.json").write_text(json.dumps(content))
    (capture / "images/003.png").unlink()
    assert run("convert", capture, tmp_path / "out", "--to", "opencv-json") == 0
    told = capsys.readouterr()
    assert "7 straightened or turned and written as PNG" in told.out and "training from test" in told.out
    assert "003.png (missing)" in told.err


def test_a_chunk_becomes_a_folder_of_photos(tmp_path, capsys):
    views = [scene_files.random_view(f"{n}.png", np.random.default_rng(n)) for n in (10, 20, 30)]
    scene_files.write_torch(tmp_path, views)
    assert run("convert", tmp_path / "000000.torch", tmp_path / "out", "--to", "transforms") == 0
    assert sorted(p.name for p in (tmp_path / "out/images").iterdir()) == ["10.jpg", "20.jpg", "30.jpg"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["CAPTURE", "OUT"], "--to transforms"),
        (["CAPTURE", "OUT", "--to", "colmap", "--dtype", "float16"], "--dtype is for checkpoints"),
        (["CAPTURE", "CAPTURE", "--to", "colmap"], "Choose another place"),
        (["nowhere", "OUT", "--to", "colmap"], "does not exist"),
        (["CAPTURE", "out.zip", "--to", "colmap"], "out.zip names an archive, but a folder is written"),
    ],
)
def test_failures_are_told_in_a_sentence(capture, tmp_path, capsys, words, reason):
    places = {"CAPTURE": capture, "OUT": tmp_path / "out"}
    code = 2 if reason == "--to transforms" else 1
    assert run("convert", *[places.get(word, word) for word in words]) == code
    told = capsys.readouterr().err
    assert reason in told and "Traceback" not in told and not (tmp_path / "out").exists()


def test_an_unknown_format_is_wrong_usage(capture, tmp_path):
    assert run("convert", capture, tmp_path / "out", "--to", "usd") == 2


def test_overwrite(capture, tmp_path, capsys):
    words = ("convert", capture, tmp_path / "out", "--to", "colmap")
    assert run(*words) == 0
    assert run(*words) == 1 and "--overwrite" in capsys.readouterr().err
    assert run(*words, "--overwrite") == 0
