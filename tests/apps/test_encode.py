"""`nvs encode` on a small capture with a small untrained model."""

import json
import os
import shutil

import pytest
import torch

from apps.cli import main
from data import open_scene
from nvs import LaCT, ModelConfig, SceneState, TrainedRange, load_model, save_model
from nvs.memory import LaCTConfig


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    memory = LaCTConfig(head_dim=32, newton_schulz_dtype="float32")
    model = LaCT(ModelConfig(dim=32, layers=2, attention_head_dim=32, memory=memory)).eval()
    model.trained = TrainedRange(views=(2, 3), image_size=(32, 40), fov_degrees=(30.0, 70.0))
    file = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save_model(model, file)
    return str(file)


@pytest.fixture
def capture(shared):
    return str(shared / "cases/11-odd-size-video/input")


def state_of(checkpoint, capture, frames, size):
    model = load_model(checkpoint)
    scene = open_scene(capture).normalize(frames)
    with torch.inference_mode():  # as the command; with gradients the products round in another order
        return model.encode(scene.load(frames, image_size=size))


def assert_same(a, b):
    assert all(
        torch.equal(x, y) for one, two in zip(a.layers, b.layers, strict=True) for x, y in zip(one, two, strict=True)
    )
    assert torch.equal(a.cameras.c2w, b.cameras.c2w) and torch.equal(a.world_to_scene, b.world_to_scene)


def test_writes_the_state_of_the_named_photos(checkpoint, capture, tmp_path, capsys):
    file = tmp_path / "deep/scene.safetensors"
    assert main(["encode", checkpoint, capture, "-o", str(file), "--input-views", "5", "0", "3"]) == 0
    assert_same(SceneState.load(file), state_of(checkpoint, capture, [5, 0, 3], (32, 40)))
    told = capsys.readouterr()
    assert "3 photos at 32x40" in told.out and str(file) in told.out and told.err == ""


def test_defaults_come_from_the_training(checkpoint, capture, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["encode", checkpoint, capture]) == 0
    chosen = sorted(open_scene(capture).choose(3)[0])
    assert_same(SceneState.load("input.safetensors"), state_of(checkpoint, capture, chosen, (32, 40)))


@pytest.mark.parametrize("given", [".", "../plant.v2", "{folder}"])
def test_the_state_is_called_after_the_folder(checkpoint, capture, tmp_path, monkeypatch, given):
    folder = tmp_path / "plant.v2"
    shutil.copytree(capture, folder)
    monkeypatch.chdir(folder)
    assert main(["encode", checkpoint, given.format(folder=folder)]) == 0
    assert list(tmp_path.rglob("*.safetensors")) == [folder / "plant.v2.safetensors"]


def test_photos_named_for_testing_are_not_inputs(checkpoint, write_capture, tmp_path, capsys):
    """5 of 8 photos are named for testing and none for training, so that 3 are left for a model that takes up to 3."""
    capture = write_capture()
    content = json.loads((capture / "transforms.json").read_text())
    content["test_filenames"] = [f"images/{i:03d}.png" for i in (0, 1, 3, 4, 6)]
    (capture / "transforms.json").write_text(json.dumps(content))
    model = load_model(checkpoint)
    model.trained = TrainedRange(views=(2, 6), image_size=(32, 40), fov_degrees=(30.0, 70.0))
    save_model(model, tmp_path / "six.safetensors")
    words = ["encode", str(tmp_path / "six.safetensors"), str(capture), "-o", str(tmp_path / "s.safetensors")]
    assert main(words) == 0
    assert_same(SceneState.load(tmp_path / "s.safetensors"), state_of(checkpoint, capture, [2, 5, 7], (32, 40)))
    assert main([*words, "--views", "4", "--overwrite"]) == 1
    assert "has 3 photos to choose from" in capsys.readouterr().err


def test_names_that_are_no_text(checkpoint, capture, tmp_path, capfd):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    shutil.copytree(capture, folder)
    file = tmp_path / os.fsdecode(b"\xff.safetensors")
    assert main(["encode", checkpoint, str(folder), "-o", str(file)]) == 0
    assert "caf\\udce9: encoded 3 photos" in capfd.readouterr().out and file.is_file()


@pytest.mark.parametrize(
    ("dtype", "kept"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_stores_in_the_wanted_precision(checkpoint, capture, tmp_path, dtype, kept):
    file = tmp_path / "scene.safetensors"
    assert main(["encode", checkpoint, capture, "-o", str(file), "--views", "2", "--dtype", dtype]) == 0
    state = SceneState.load(file)
    assert {x.dtype for layer in state.layers for x in layer} == {kept}
    with torch.inference_mode():
        assert load_model(checkpoint).render(state, state.cameras).isfinite().all()


def test_slices_do_not_change_the_state(checkpoint, capture, tmp_path):
    whole, sliced = tmp_path / "whole.safetensors", tmp_path / "sliced.safetensors"
    assert main(["encode", checkpoint, capture, "-o", str(whole)]) == 0
    assert main(["encode", checkpoint, capture, "-o", str(sliced), "--slice-tokens", "7"]) == 0
    for one, two in zip(SceneState.load(whole).layers, SceneState.load(sliced).layers, strict=True):
        for a, b in zip(one, two, strict=True):
            assert torch.allclose(a, b, atol=1e-4)


def test_warns_outside_the_trained_range(checkpoint, capture, tmp_path, capsys):
    words = ["-o", str(tmp_path / "s.safetensors"), "--views", "5", "--image-size", "16", "24"]
    assert main(["encode", checkpoint, capture, *words]) == 0
    told = capsys.readouterr().err
    assert "warning: outside the trained range: 5 input views" in told and "images of 16x24 pixels" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--image-size", "30", "44"], "32x48"),
        (["--views", "9"], "8 photos"),
        (["--views", "0"], "8 photos"),
        (["--input-views", "0", "8"], "no photo number 8"),
        (["--input-views", "1", "1"], "twice"),
        (["--views", "2", "--input-views", "1"], "both given"),
        (["-o", "state.mp4"], "ends in .safetensors"),
        (["-o", "file/scene.safetensors"], "Nothing can be written"),
        (["-o", "folder.safetensors"], "is a folder"),
        (["--device", "cuda"], "no usable CUDA GPU"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(checkpoint, capture, tmp_path, monkeypatch, capsys, words, message):
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.safetensors").mkdir()
    assert main(["encode", checkpoint, capture, *words]) == 1
    told = capsys.readouterr()
    assert message in told.err and "Traceback" not in told.err and len(told.err.strip().splitlines()) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.safetensors"]


def test_missing_scene_checkpoint_and_photos(checkpoint, capture, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(capture, tmp_path / "empty")
    for photo in (tmp_path / "empty/images").iterdir():
        photo.chmod(0o644)
        photo.write_bytes(b"")
    assert main(["encode", checkpoint, "nowhere"]) == 1
    assert main(["encode", "none.safetensors", capture]) == 1
    assert main(["encode", checkpoint, "empty"]) == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]
