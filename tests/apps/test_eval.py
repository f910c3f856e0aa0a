"""`nvs eval` as a person runs it."""

import csv
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

import nvs
from apps.cli import main
from data import bundled_scenes
from nvs import lpips
from nvs.memory import LaCTConfig

LPIPS_MISSING = "LPIPS not available: no VGG16 weights on this machine"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    memory = LaCTConfig(head_dim=32)
    model = nvs.LaCT(nvs.ModelConfig(dim=32, layers=2, patch_size=8, attention_head_dim=32, memory=memory))
    model.trained = nvs.TrainedRange((2, 8), (24, 32), (10.0, 70.0), description="an untrained model for tests")
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    nvs.save_model(model, path)
    return str(path)


@pytest.fixture(autouse=True)
def no_lpips_weights(monkeypatch, tmp_path):
    """The same on every machine: no weights for LPIPS, and none are fetched."""
    monkeypatch.delenv(lpips.WEIGHTS_VARIABLE, raising=False)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr(lpips, "_backbone_from_torchvision", lambda: lpips.Unavailable(LPIPS_MISSING[21:]))


def test_reference_case(checkpoint, shared, tmp_path, capsys):
    scenes = shared / "cases/13-metrics-reference-offline/input/scenes"
    assert main(["eval", checkpoint, str(scenes), "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "2 of 3 scenes, 1 skipped: too few photos" in printed
    assert "dB worse than copying photos" in printed  # the model is untrained
    assert LPIPS_MISSING in printed
    read = json.loads((tmp_path / "out/metrics.json").read_text())
    assert read["summary"] == "2 of 3 scenes, 1 skipped: too few photos"
    assert [Path(s["path"]).name for s in read["skipped"]] == ["scene_too_short"]
    assert read["mean_over_images"]["model"]["lpips"] is None
    assert read["trained"] == "an untrained model for tests"
    for metric in ("psnr", "ssim", "chroma_error"):
        assert read["mean_over_images"]["model"][metric] is not None
    rows = list(csv.DictReader((tmp_path / "out/metrics.csv").open()))
    assert len(rows) == 2 * 4 * 3
    ours = [float(r["psnr"]) for r in rows if r["method"] == "model"]
    assert sum(ours) / len(ours) == pytest.approx(read["mean_over_images"]["model"]["psnr"], abs=1e-3)
    for name in ("scene_ok_1", "scene_ok_2"):
        assert Image.open(tmp_path / f"out/sheets/{name}.png").width > 400


def test_scenes_of_one_name_get_sheets_of_their_own(checkpoint, tmp_path):
    capture = str(bundled_scenes()["skull"])
    out = tmp_path / "out"
    assert main(["eval", checkpoint, capture, capture, "--targets", "1", "--inputs", "2", "-o", str(out)]) == 0
    assert sorted(p.name for p in (out / "sheets").iterdir()) == ["skull.2.png", "skull.png"]
    words = ["--targets", "1", "--inputs", "2", "-o", str(out), "--overwrite"]
    assert main(["eval", checkpoint, capture, *words]) == 0
    assert [p.name for p in (out / "sheets").iterdir()] == ["skull.png"]
    (out / "metrics.json").unlink()  # as in the folder of a training run
    (out / "sheets/mine.png").touch()
    assert main(["eval", checkpoint, capture, *words]) == 0
    assert sorted(p.name for p in (out / "sheets").iterdir()) == ["mine.png", "skull.png"]


def test_names_in_any_script_and_those_that_are_no_text(checkpoint, tmp_path, capfd):
    emoji, latin = tmp_path / "sc\U0001f600", tmp_path / "set" / os.fsdecode(b"caf\xe9")
    for folder in (emoji, latin):
        shutil.copytree(bundled_scenes()["skull"], folder)
    words = ["eval", checkpoint, str(emoji), str(tmp_path / "set"), "--targets", "1", "--inputs", "2"]
    assert main([*words, "-o", str(tmp_path / "out")]) == 0
    assert "2 of 2 scenes" in capfd.readouterr().out
    rows = list(csv.DictReader((tmp_path / "out/metrics.csv").open(encoding="utf-8")))
    assert {r["scene"] for r in rows} == {"sc\U0001f600", "caf\\udce9"}
    read = json.loads((tmp_path / "out/metrics.json").read_text(encoding="utf-8"))
    assert [s["name"] for s in read["scenes"]] == [emoji.name, latin.name]


def test_zero_targets_means_all_and_image_size_is_taken(checkpoint, tmp_path):
    capture, out = str(bundled_scenes()["skull"]), tmp_path / "out"
    words = ["eval", checkpoint, capture, "--targets", "0", "--image-size", "16", "24", "-o", str(out)]
    assert main(words) == 0
    read = json.loads((out / "metrics.json").read_text())
    assert read["image_size"] == [16, 24]
    assert len(read["scenes"][0]["images"]) == 5
    assert any("trained at 24x32" in w for w in read["scenes"][0]["warnings"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["eval", "{checkpoint}", "{tmp}/nothing"], "nothing does not exist"),
        (["eval", "{checkpoint}", "{capture}", "{tmp}/nothing"], "nothing was evaluated"),
        (["eval", "{tmp}/nothing.safetensors", "{capture}"], "there is no checkpoint"),
        (["eval", "{tmp}", "{capture}"], "the checkpoint comes first"),
        (["eval", "{checkpoint}", "{capture}", "--image-size", "20", "32"], "nearest size"),
        (["eval", "{checkpoint}", "{capture}", "--inputs", "0"], "at least 1"),
        (["eval", "{checkpoint}", "{capture}", "--inputs", "500"], "500 input views and at least one held-out photo"),
        (["eval", "{checkpoint}", "{capture}", "--lpips-weights", "{tmp}/none.pth"], "There is no file"),
    ],
)
def test_expected_failures_are_one_line_and_leave_no_files(checkpoint, tmp_path, capsys, words, told):
    names = {"checkpoint": checkpoint, "tmp": tmp_path, "capture": bundled_scenes()["skull"]}
    out = tmp_path / "out"
    assert main([w.format(**names) for w in words] + ["-o", str(out)]) == 1
    error = capsys.readouterr().err.strip()
    assert told in error
    assert "Traceback" not in error
    assert not [p for p in out.rglob("*") if p.is_file()]


def test_an_output_that_cannot_be_a_folder_is_refused_at_once(checkpoint, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    words = ["eval", checkpoint, str(bundled_scenes()["skull"]), "-o", str(tmp_path / "file")]
    assert main(words) == 1
    assert "choose another place" in capsys.readouterr().err


def test_wrong_usage_is_code_2(checkpoint, capsys):
    assert main(["eval", checkpoint, "x", "--targets", "many"]) == 2
    assert "--targets takes a whole number, not many" in capsys.readouterr().err
    assert main(["eval"]) == 2
