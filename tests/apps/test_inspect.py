"""`nvs inspect` through the command line: captures, checkpoints, states, and what is wrong with them."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import make_views

import nvs
from apps.cli import main
from data import open_scene
from nvs.memory import LaCTConfig


@pytest.fixture
def run(capsys):
    """Run a command line; returns exit code, what was printed and what was complained."""

    def run(*words):
        code = main([str(w) for w in words])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return run


@pytest.fixture
def model():
    torch.manual_seed(0)
    memory = LaCTConfig(head_dim=32)
    model = nvs.LaCT(nvs.ModelConfig(dim=32, layers=1, attention_head_dim=32, memory=memory)).eval()
    model.trained = nvs.TrainedRange((2, 6), (32, 32), (40.0, 60.0), "focus", "white", "balls", 5)
    return model


@pytest.fixture
def checkpoint(model, tmp_path):
    nvs.save_model(model, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_capture(run, capture):
    code, out, err = run("inspect", capture)
    assert code == 0 and err == ""
    for words in (
        "capture balls",
        "nerfstudio",
        "frames               8",
        "48x64",
        "49.1 degrees",
        "pinhole",
        "0 000.png",
    ):
        assert words in out
    assert "in front" in out and "warning" not in out


def test_dump_is_what_the_model_gets(run, capture, tmp_path):
    code, out, _ = run("inspect", capture, "--dump", tmp_path / "dump", "--image-size", "24", "20")
    assert code == 0 and "8 pictures" in out
    content = json.loads((tmp_path / "dump/cameras.json").read_text())
    scene = open_scene(capture)
    views = scene.load(range(8), (24, 20))
    assert [v["name"] for v in content["views"]] == [f.name for f in scene.frames]
    for i, view in enumerate(content["views"]):
        assert view["pixel_centre"] == 0.5
        np.testing.assert_array_equal(np.array(view["c2w"], np.float32), views.c2w[i].numpy())
        np.testing.assert_allclose([view[k] for k in ("fx", "fy", "cx", "cy")], views.intrinsics[i].numpy())
        pixels = np.asarray(Image.open(tmp_path / "dump" / view["image"]))
        np.testing.assert_array_equal(pixels, (views.images[i] * 255).round().byte().permute(1, 2, 0).numpy())
    np.testing.assert_allclose(content["world_to_scene"], scene.world_to_scene)
    assert len(list((tmp_path / "dump").iterdir())) == 9


def test_dump_keeps_the_size_of_each_photo_and_the_background(run, write_capture, tmp_path):
    folder = write_capture(alpha=True, frames=3, size=(30, 40))
    code, _, _ = run("inspect", folder, "--dump", tmp_path / "dump", "--background", "0,0,255")
    assert code == 0
    pictures = sorted((tmp_path / "dump").glob("*.png"))
    assert len(pictures) == 3
    for picture in pictures:
        pixels = np.asarray(Image.open(picture))
        assert pixels.shape == (30, 40, 3) and pixels[0, 0].tolist() == [0, 0, 255]


def test_warnings_strict_and_nothing_left(run, capture, tmp_path):
    (capture / "images" / "003.png").unlink()
    code, out, _ = run("inspect", capture)
    assert code == 0 and "1 of 8 frames are left out: 003.png (missing)" in out
    code, out, err = run("inspect", capture, "--strict", "--dump", tmp_path / "dump")
    assert code == 1 and "003.png" in err and not (tmp_path / "dump").exists()
    for photo in (capture / "images").iterdir():
        photo.unlink()
    code, _, err = run("inspect", capture)
    assert code == 1 and "no usable frame" in err


def test_flipped_axes_are_told(run, capture):
    content = json.loads((capture / "transforms.json").read_text())
    for frame in content["frames"]:
        frame["transform_matrix"] = (np.array(frame["transform_matrix"]) * [1, -1, -1, 1]).tolist()
    (capture / "transforms.json").write_text(json.dumps(content))
    code, out, _ = run("inspect", capture)
    assert code == 0 and "axes look flipped" in out and "behind 100%" in out


def test_trained_range(run, write_capture, checkpoint):
    inside = write_capture("inside", size=(32, 32), focal=35.0)
    wide = write_capture("wide", size=(32, 32), focal=10.0)
    few = write_capture("few", size=(32, 32), focal=35.0, frames=1)
    code, out, _ = run("inspect", inside, "--checkpoint", checkpoint)
    assert code == 0 and "sizes and angles fit" in out and "outside" not in out
    code, out, _ = run("inspect", wide, "--checkpoint", checkpoint)
    assert code == 0 and "outside the trained range: horizontal view angles" in out
    code, out, _ = run("inspect", few, "--checkpoint", checkpoint)
    assert code == 0 and "1 input views" in out
    code, _, err = run("inspect", inside, "--checkpoint", "no_such_model")
    assert code == 1 and "no_such_model" in err


def test_trained_range_of_a_capture_that_names_test_photos_only(run, write_capture, checkpoint):
    folder = write_capture("some", size=(32, 32), focal=35.0)
    content = json.loads((folder / "transforms.json").read_text())
    for tested in (5, 8):
        content["test_filenames"] = [f"images/{i:03d}.png" for i in range(tested)]
        (folder / "transforms.json").write_text(json.dumps(content))
        code, out, _ = run("inspect", folder, "--checkpoint", checkpoint)
        assert code == 0 and "sizes and angles fit" in out


def test_checkpoint(run, checkpoint, model):
    code, out, _ = run("inspect", checkpoint)
    parameters = sum(p.numel() for p in model.parameters()) / 1e6
    assert code == 0
    for words in ("dim                  32", "layers", f"{parameters:.2f} million", "2 to 6", "40 to 60", "balls"):
        assert words in out
    assert model.encode(make_views(2)).fingerprint in out


def test_scene_state(run, model, capture, tmp_path):
    state = model.encode(open_scene(capture).load(range(3), (16, 24)))
    state.save(tmp_path / "state.safetensors")
    code, out, _ = run("inspect", tmp_path / "state.safetensors")
    assert code == 0
    for words in ("scene state", "1 of LaCTState", "float32", "3 kept, 16x24", state.fingerprint):
        assert words in out


@pytest.mark.parametrize("words", [["nowhere"], ["empty"], ["broken.safetensors"], ["broken.pt"], ["notes.txt"]])
def test_other_things_are_told_in_a_sentence(run, tmp_path, words):
    (tmp_path / "empty").mkdir()
    for name in ("broken.safetensors", "broken.pt", "notes.txt"):
        (tmp_path / name).write_bytes(b"no such thing")
    code, out, err = run("inspect", tmp_path / words[0])
    assert code == 1 and out == "" and len(err.strip().splitlines()) == 1 and words[0] in err


def test_folders_of_runs_and_single_pictures_are_told_for_what_they_are(run, capture, tmp_path):
    (tmp_path / "run/sheets").mkdir(parents=True)
    (tmp_path / "run/last.ckpt").write_bytes(b"")
    picture = capture / "images/000.png"
    shutil.copy(picture, tmp_path / "run/sheets")
    _, _, err = run("inspect", tmp_path / "run")
    assert "folder of a training run" in err and str(tmp_path / "run/last.ckpt") in err
    _, _, err = run("inspect", picture)
    assert "is a single picture" in err


def test_wrong_requests_are_told(run, capture, checkpoint, tmp_path):
    code, _, err = run("inspect", checkpoint, "--dump", tmp_path / "x")
    assert code == 1 and "only captures can be dumped" in err
    code, _, err = run("inspect", capture, "--image-size", "0", "5")
    assert code == 1 and "--image-size" in err
    code, _, err = run("inspect", capture, "--background", "beige")
    assert code == 2 and "no colour" in err
    code, _, err = run("inspect", capture, "--dump", capture / "transforms.json")
    assert code == 1
