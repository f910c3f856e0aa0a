"""`nvs prepare procedural` as a person runs it, and training on random scenes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nvs
from apps.cli import main
from data import ProceduralConfig, open_scene, procedural_views

SMALL = ["--views", "2", "--size", "16", "24"]


def run(*words: object) -> int:
    return main(["prepare", "procedural", *map(str, words), *SMALL])


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder by their relative path."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_scenes_are_written_as_they_are_made_on_the_fly(tmp_path, capsys):
    assert run("-n", 3, "-o", tmp_path / "set", "--seed", 4) == 0
    assert "3 scenes of 2 views made, 0 were already there" in capsys.readouterr().out
    assert sorted(p.name for p in (tmp_path / "set").iterdir()) == ["000000", "000001", "000002"]
    for index in range(3):
        scene = open_scene(tmp_path / f"set/{index:06d}").normalize([0, 1], "none")
        loaded, made = scene.load([0, 1], (16, 24)), procedural_views(ProceduralConfig(seed=4), index, 2, (16, 24))
        assert loaded.alpha is not None and made.alpha is not None
        torch.testing.assert_close(loaded.c2w, made.c2w)
        torch.testing.assert_close(loaded.intrinsics, made.intrinsics)
        torch.testing.assert_close(loaded.alpha, made.alpha, rtol=0, atol=0.003)
        torch.testing.assert_close(loaded.images, made.images, rtol=0, atol=0.006)


def test_finished_scenes_are_kept_and_the_rest_is_made(tmp_path, capsys):
    folder = tmp_path / "set"
    assert run("-n", 2, "-o", folder) == 0
    before, stamp = contents(folder), (folder / "000001/transforms.json").stat().st_mtime_ns
    capsys.readouterr()
    assert run("-n", 3, "-o", folder) == 0
    assert "1 scenes of 2 views made, 2 were already there" in capsys.readouterr().out
    assert (folder / "000001/transforms.json").stat().st_mtime_ns == stamp
    assert run("--first", 1, "-n", 1, "-o", tmp_path / "share") == 0
    shared = contents(tmp_path / "share")
    assert shared and all(before[name] == content for name, content in shared.items())


def test_scenes_made_another_way_are_replaced_only_when_told(tmp_path, capsys):
    folder = tmp_path / "set"
    assert run("-n", 1, "-o", folder) == 0
    before = contents(folder)
    assert run("-n", 1, "-o", folder, "--seed", 1) == 1
    assert "add --overwrite" in capsys.readouterr().err
    assert contents(folder) == before
    (folder / "000000/mine.txt").write_text("precious")
    assert run("-n", 1, "-o", folder, "--seed", 1, "--overwrite") == 1
    assert "other files" in capsys.readouterr().err
    (folder / "000000/mine.txt").unlink()
    assert run("-n", 1, "-o", folder, "--seed", 1, "--overwrite") == 0
    after = contents(folder)
    assert after.keys() == before.keys() and after != before
    assert [p.name for p in folder.iterdir()] == ["000000"]


def test_rooms_and_pictures_on_shapes(tmp_path):
    (tmp_path / "art").mkdir()
    Image.new("RGB", (300, 200), (250, 10, 10)).save(tmp_path / "art/red.jpg")
    words = ["--mode", "room", "--pictures", tmp_path / "art", "--picture-share", 1, "--no-shadows"]
    assert run("-n", 1, "-o", tmp_path / "set", *words) == 0
    picture = np.asarray(Image.open(tmp_path / "set/000000/images/0001.png")).astype(int)
    assert picture.shape == (16, 24, 3)
    assert (picture[..., 0] > picture[..., 1] + 30).mean() > 0.3
    recipe = json.loads((tmp_path / "set/000000/transforms.json").read_text())["made_by_nvs_prepare"]
    assert recipe["mode"] == "room" and str(tmp_path) not in json.dumps(recipe)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-n", 1], "-o FOLDER"),
        (["-n", 0, "-o", "set"], "--count"),
        (["-n", 1, "-o", "set", "--first", -1], "--first"),
        (["-n", 1, "-o", "set", "--pictures", "nowhere"], "nowhere"),
        (["-n", 1, "-o", "set", "--shapes", 4, 2], "shapes is 4 2"),
        (["chair.glb", "-n", 1, "-o", "set"], "without chair.glb"),
    ],
)
def test_what_cannot_be_made_is_told_in_a_sentence(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == (2 if told in ("-o FOLDER", "without chair.glb") else 1)
    message = capsys.readouterr().err
    assert told in message and "Traceback" not in message
    assert not list(tmp_path.glob("**/*.json"))


def test_help_gives_an_example(capsys):
    assert main(["prepare", "procedural", "--help"]) == 0
    told = capsys.readouterr().out
    assert "nvs prepare procedural -n 1000 -o set/" in told and "-n" in told
    assert main(["prepare", "procedural", "--mode", "street"]) == 2


@pytest.mark.slow
def test_a_model_trains_on_random_scenes(tmp_path, capsys):
    config = tmp_path / "small.yaml"
    config.write_text(
        "model: {dim: 32, layers: 2, patch_size: 8, attention_head_dim: 16, mlp_ratio: 2, memory: {head_dim: 16}}\n"
        "data: {source: procedural, image_size: [16, 16], batch_size: 2, input_views: [2, 2], target_views: [1, 1],\n"
        "       procedural: {shapes: [1, 3]}, validation_max_scenes: 2}\n"
        "training: {max_steps: 2, warmup_steps: 1, validate_every: 2, save_every: 2, log_every: 1}\n"
    )
    words = ["train", "--config", str(config), "--output", str(tmp_path / "run")]
    assert main([*words, "--data.procedural.fov-range", "40", "50"]) == 0
    assert "random scenes (object mode)" in " ".join(capsys.readouterr().err.split())
    trained = nvs.load_model(tmp_path / "run/last.ckpt").trained
    assert trained is not None
    assert trained.fov_degrees == (40.0, 50.0)
    assert "procedural" in trained.description
    assert main([*words, "--data.procedural.mode", "street"]) == 2
    assert main([*words, "--data.scene", "somewhere"]) == 1
