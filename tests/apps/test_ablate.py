"""`nvs ablate` as a person runs it: from nothing to the table, interrupted, repeated, and with a layer that fails."""

import csv
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

import nvs
from apps.ablate import _timing_views, describe, keep, make_runs
from apps.ablation_runs import Judging, Run, find_judged, only_one
from apps.cli import main
from data import UserError
from data.batches import DataConfig
from nvs.training_config import TrainingConfig

ROOT = Path(__file__).resolve().parents[2]
LAYER = "model: {{memory: {{class_path: nvs.memory.{}, init_args: {{head_dim: 16}}}}}}\n"
SMALL = {
    "model": {"dim": 32, "layers": 1, "patch_size": 8, "attention_head_dim": 16, "memory": {"head_dim": 16}},
    "data": {
        "source": "procedural",
        "image_size": [16, 16],
        "batch_size": 1,
        "input_views": [2, 2],
        "target_views": [2, 2],
    },
    "training": {"max_steps": 3, "warmup_steps": 1, "save_every": 1, "validate_every": 1000, "ema_decay": 0.5},
    "seeds": [0, 1],
    "scenes": 2,
    "scene_views": 6,
    "test_scenes": 1,
    "inputs": 2,
    "targets": 2,
    "timing_rounds": 1,
}


@pytest.fixture
def config(tmp_path):
    for name, kind in {"first": "LaCTConfig", "second": "SoftmaxConfig"}.items():
        (tmp_path / f"{name}.yaml").write_text(LAYER.format(kind))
    path = tmp_path / "small.yaml"
    variants = [str(tmp_path / "first.yaml"), str(tmp_path / "second.yaml")]
    path.write_text(yaml.safe_dump(SMALL | {"variants": variants}))
    return path


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


def run(config: Path, folder: Path, *words: str) -> int:
    return main(["ablate", "--config", str(config), "-o", str(folder), *words])


def start(config: Path, folder: Path, *words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "apps", "ablate", "--config", str(config), "-o", str(folder), *words]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)


def wait_for(path: Path, seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.1)


@pytest.mark.slow
def test_everything_once_and_nothing_twice(config, folder, capsys):
    (config.parent / "broken.yaml").write_text(
        "model: {memory: {class_path: nvs.memory.LaCTConfig, init_args: {head_dim: 7}}}\n"
    )
    values = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(values | {"variants": [*values["variants"], str(config.parent / "broken.yaml")]}))
    assert run(config, folder, "--seeds", "0") == 1
    assert "Not all variants could be trained and judged: broken" in capsys.readouterr().err

    rows = {r["variant"]: r for r in csv.DictReader((folder / "ablation.csv").open())}
    assert rows["broken"]["psnr_db"] == "" and "head_dim 7" in rows["broken"]["failure"]
    for name, kind in {"first": "lact", "second": "softmax"}.items():
        metrics = json.loads((folder / "runs" / name / "seed0/metrics.json").read_text())
        model = nvs.load_model(folder / "runs" / name / "seed0/last.ckpt")
        assert model.config.memory.kind == kind == metrics["memory"]["kind"]
        assert model.trained.steps == 3 == int(rows[name]["steps"])
        assert float(rows[name]["psnr_db"]) == pytest.approx(metrics["mean_over_images"]["model"]["psnr"])
        assert int(rows[name]["parameters"]) == sum(p.numel() for p in model.parameters())
        assert float(rows[name]["training_samples_per_second"]) > 0 and float(rows[name]["render_ms_per_view"]) > 0
    # LaCT: 3 matrices of 2 heads, 16 x 32 numbers each; softmax: keys and values of 2 views with 4 patches.
    assert int(rows["first"]["state_bytes"]) == 4 * 3 * 2 * 16 * 32 and rows["first"]["state_grows"] == "False"
    assert int(rows["second"]["state_bytes"]) == 4 * 2 * 32 * 8 and rows["second"]["state_grows"] == "True"
    assert (folder / "ablation.png").read_bytes()[:4] == b"\x89PNG"

    before = {p: p.stat().st_mtime_ns for p in folder.glob("runs/*/seed0/last.ckpt")}
    assert run(config, folder, "--seeds", "0") == 1  # the broken one is tried again, the others are kept
    assert before == {p: p.stat().st_mtime_ns for p in folder.glob("runs/*/seed0/last.ckpt")}
    assert run(config, folder, "--seeds", "0", "--training.max-steps", "4") == 1
    assert "settings.yaml" in capsys.readouterr().err


@pytest.mark.slow
def test_the_same_views_for_every_variant_and_another_start_for_every_seed(config, folder):
    assert run(config, folder, "--timing-rounds", "0") == 0
    shown = [yaml.safe_load(p.read_text()) for p in sorted(folder.glob("runs/*/*/config.yaml"))]
    assert len(shown) == 4 and [s["training"]["seed"] for s in shown] == [0, 1, 0, 1]
    assert all(s["data"] == shown[0]["data"] for s in shown)
    weights = [nvs.load_model(folder / f"runs/first/seed{s}/last.ckpt").state_dict()["embed.weight"] for s in (0, 1)]
    assert not torch.equal(*weights)
    rows = json.loads((folder / "ablation.json").read_text())["rows"]
    assert [len(r["psnr_by_seed"]) for r in rows] == [2, 2] and rows[0]["psnr_spread_db"] is not None


@pytest.mark.slow
def test_interrupted_it_saves_and_goes_on(config, folder):
    words = ("--training.max-steps", "400", "--seeds", "0", "--timing-rounds", "0")
    process = start(config, folder, *words)
    wait_for(folder / "runs/first/seed0/last.ckpt")
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130
    saved = torch.load(folder / "runs/first/seed0/last.ckpt", weights_only=True)["global_step"]
    assert 0 < saved < 400
    assert not (folder / "runs/first/seed0/metrics.json").exists()
    process = start(config, folder, *words)
    wait_for(folder / "runs/first/seed0/metrics.json")
    process.send_signal(signal.SIGTERM)
    process.wait(120)
    assert json.loads((folder / "runs/first/seed0/metrics.json").read_text())["steps"] == 400
    log = (folder / "runs/first/seed0/log.txt").read_text()
    assert "Saved at step" in log and "Done at step 400" in log


def test_two_at_once_are_refused(config, folder, capsys):
    folder.mkdir()
    with (folder / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert run(config, folder) == 1
    assert "in use by another nvs ablate" in capsys.readouterr().err
    with only_one(folder):
        pass


def test_what_decides_a_run_may_not_change(tmp_path):
    keep(tmp_path / "settings.yaml", "a: 1\n")
    keep(tmp_path / "settings.yaml", "a: 1\n")
    with pytest.raises(UserError, match=r"settings\.yaml .* differs"):
        keep(tmp_path / "settings.yaml", "a: 2\n")


def test_runs_go_seed_by_seed(config, folder):
    variants = yaml.safe_load(config.read_text())["variants"]
    runs = make_runs(folder, variants, (3, 5, 3))
    assert [(r.variant, r.seed) for r in runs] == [("first", 3), ("second", 3), ("first", 5), ("second", 5)]
    assert runs[3] == Run("second", folder / "variants/second.yaml", 5, folder / "runs/second/seed5")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--variants", "nowhere.yaml"], "nowhere.yaml cannot be read"),
        (["--jobs", "0"], "--jobs 0 is not possible"),
        (["--timing-rounds", "-1"], "--timing-rounds -1 is not possible"),
        (["--test", "nowhere"], "nowhere"),
        (["--inputs", "7"], "The models could not be judged"),
        (["--data.source", "captures", "--data.scene", "x"], "--test"),
    ],
)
def test_bad_input_is_told(config, folder, capsys, words, told):
    values = yaml.safe_load(config.read_text())
    config.write_text(yaml.safe_dump(values | {"scenes": 1}))
    assert run(config, folder, *words) == (2 if told == "--test" else 1)
    assert told in capsys.readouterr().err
    assert not (folder / "runs").exists() and not (folder / "judging.json").exists()


def test_speeds_are_measured_with_as_many_targets_as_every_capture_has(tmp_path, write_capture):
    write_capture("few", frames=4)
    write_capture("many", frames=9)
    write_capture("none", frames=2)
    config = DataConfig(image_size=(16, 16), batch_size=3, target_views=(1, 4))
    found = find_judged(Judging((str(tmp_path),), 2, 8), config)
    assert sorted(scene.name for scene in found) == ["few", "many"]
    pairs = _timing_views(found, 2, config)
    assert [(inputs.num_views, targets.num_views) for inputs, targets in pairs] == [(2, 2)] * 3


def test_two_variants_of_one_name_are_refused(tmp_path, folder):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "x.yaml").write_text("{}")
    with pytest.raises(UserError, match="Two variants are called x"):
        make_runs(folder, [str(tmp_path / "a/x.yaml"), str(tmp_path / "b/x.yaml")], (0,))


def test_the_table_tells_what_it_was_found_with():
    told = describe(
        nvs.ModelConfig(), DataConfig(scenes=["a"]), TrainingConfig(max_minutes=2.5), Judging(("b",), 3, 4), 1
    )
    assert "at most 2.5 minutes" in told["training"] and "3 input views" in told["judged on"]


def test_the_shipped_configuration_names_layers_that_are_there():
    values = yaml.safe_load((ROOT / "configs/ablation_small.yaml").read_text())
    assert len(values["seeds"]) >= 2
    assert {Path(v).stem for v in values["variants"]} >= {"lact", "v1", "v2", "v3", "v4", "v6", "softmax", "linear"}
    assert all((ROOT / v).is_file() for v in values["variants"])
