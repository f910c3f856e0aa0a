"""`nvs demo` as a person runs it, with a stand-in for the shipped checkpoint and with the real one."""

import errno
import json
import os

import imageio_ffmpeg
import pytest
import torch
from PIL import Image

import nvs
from apps.cli import COMMANDS, main
from apps.demo import next_commands
from nvs import checkpoint, video
from nvs.memory import LaCTConfig

SHIPPED = checkpoint.ASSETS / "demo.safetensors"


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """A tiny untrained model under the name of the shipped one."""
    torch.manual_seed(0)
    memory = LaCTConfig(head_dim=32)
    model = nvs.LaCT(nvs.ModelConfig(dim=32, layers=2, patch_size=8, attention_head_dim=32, memory=memory))
    model.trained = nvs.TrainedRange((2, 8), (32, 32), (10.0, 70.0), description="an untrained [stand-in]")
    nvs.save_model(model, tmp_path / "assets/demo.safetensors")
    monkeypatch.setattr(checkpoint, "ASSETS", tmp_path / "assets")
    return model


def test_leaves_every_file_and_prints_both_baselines(stand_in, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["demo", "-o", str(out), "--frames", "12"]) == 0
    printed = capsys.readouterr().out
    read = json.loads((out / "metrics.json").read_text())
    for method in ("model", "nearest_input", "mean_input"):
        assert f"{read['mean_over_images'][method]['psnr']:.2f}" in printed
    assert "an untrained [stand-in]" in printed
    assert "no better than copying photos" in printed
    assert imageio_ffmpeg.count_frames_and_secs(str(out / "orbit.mp4"))[0] == 12
    assert Image.open(out / "sheet.png").width > 400
    state = nvs.SceneState.load(out / "state.safetensors")
    model = nvs.load_model("demo")
    assert model.render(state, state.cameras).shape == (4, 3, 32, 32)
    assert sorted(p.name for p in out.iterdir()) == ["metrics.json", "orbit.mp4", "sheet.png", "state.safetensors"]


def test_photos_of_the_other_capture_work_too(stand_in, tmp_path, capsys):
    assert main(["demo", "--scene", "gso_toy", "-o", str(tmp_path / "out"), "--frames", "2"]) == 0
    assert "gso_toy: 4 input views" in capsys.readouterr().out


def test_without_a_film_the_rest_is_kept(stand_in, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: "/no/such/ffmpeg")
    out = tmp_path / "out"
    assert main(["demo", "-o", str(out)]) == 0
    assert "there is no film: An mp4 film needs ffmpeg" in capsys.readouterr().out
    assert sorted(p.name for p in out.iterdir()) == ["metrics.json", "sheet.png", "state.safetensors"]


def test_without_the_checkpoint_it_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(checkpoint, "ASSETS", tmp_path)
    assert main(["demo", "-o", str(tmp_path / "out")]) == 1
    assert "there is no checkpoint at demo" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--frames", "-3"], "--frames -3 is not possible"),
        (["--frames", "0"], "--frames 0 is not possible"),
        (["--inputs", "0"], "at least 1"),
        (["--inputs", "500"], "500"),
    ],
)
def test_what_cannot_be_done_is_refused_and_leaves_no_folder(stand_in, tmp_path, capsys, words, told):
    assert main(["demo", "-o", str(tmp_path / "deep/out"), *words]) == 1
    assert told in capsys.readouterr().err
    assert not (tmp_path / "deep").exists()


def test_a_film_that_fails_to_be_written_is_an_error(stand_in, monkeypatch, tmp_path, capsys):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(video, "open_video", full)
    assert main(["demo", "-o", str(tmp_path / "out"), "--frames", "2"]) == 1
    assert "the disk is full" in capsys.readouterr().err


def test_only_commands_that_exist_are_recommended(tmp_path):
    for line in next_commands(tmp_path, tmp_path):
        program, command, *_ = line.split()
        assert program == "nvs" and command in COMMANDS


@pytest.mark.slow
@pytest.mark.skipif(not SHIPPED.is_file(), reason="no checkpoint is shipped yet")
def test_the_shipped_model_beats_both_baselines(tmp_path):
    assert SHIPPED.stat().st_size < 16 * 2**20
    assert main(["demo", "-o", str(tmp_path)]) == 0
    mean = json.loads((tmp_path / "metrics.json").read_text())["mean_over_images"]
    assert mean["model"]["psnr"] > max(mean["nearest_input"]["psnr"], mean["mean_input"]["psnr"])
