"""`nvs train` as a person runs it: runs, resumptions, moved and mangled checkpoints, failures."""

import csv
import math
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

import data
import nvs
from apps.cli import main
from nvs.evaluation import Settings, evaluate
from nvs.lpips import Unavailable

ROOT = Path(__file__).resolve().parents[2]
SMALL = """
model: {dim: 32, layers: 2, patch_size: 8, attention_head_dim: 16, mlp_ratio: 2, memory: {head_dim: 16}}
data: {image_size: [32, 32], batch_size: 2, input_views: [2, 3], target_views: [1, 2], holdout_every: 4}
training: {max_steps: 4, warmup_steps: 2, learning_rate: 0.002, ema_decay: 0.9, validate_every: 100, save_every: 100,
           log_every: 1}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)


@pytest.fixture
def train(config, tmp_path):
    """`train(output, *words)`: runs `nvs train` with a tiny configuration and returns the exit code."""

    def run(output: str, *words: str) -> int:
        return main(["train", "--config", config, "--output", str(tmp_path / output), *words])

    return run


def log(folder: Path, column: str) -> dict[int, float]:
    """A logged number of each step, over all starts of a run."""
    rows = [row for file in sorted(folder.glob("csv/*/metrics.csv")) for row in csv.DictReader(file.open())]
    return {int(row["step"]): float(row[column]) for row in rows if row.get(column)}


def same(a, b) -> bool:
    """Whether nested values are equal, tensors bit by bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def rendering(checkpoint: Path, scene: Path) -> torch.Tensor:
    views = data.open_scene(scene).load([0, 3, 5], (32, 32))
    return nvs.load_model(checkpoint)(views.select([0, 1]), views.select([2]).cameras)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resumed_run_equals_uninterrupted_run(train, shared, tmp_path, optimizer):
    scenes = shared / "cases/14-resume-and-compiled-checkpoint/input/scenes"
    words = ["--data.scenes", str(scenes / "*"), "--training.max-steps", "20", "--training.save-every", "10"]
    words += ["--training.optimizer", optimizer, "--data.rotate-world", "--data.scale-jitter", "0.2"]
    words += ["--training.validate-every", "10"]
    assert train("whole", *words) == 0
    middle = tmp_path / "whole/previous.ckpt"
    assert torch.load(middle, weights_only=True)["global_step"] == 10
    assert train("resumed", *words, "--resume", str(middle)) == 0

    for column in ("train/loss", "learning_rate", "train/gradient_norm", "val/psnr"):
        whole, resumed = log(tmp_path / "whole", column), log(tmp_path / "resumed", column)
        assert resumed == pytest.approx({k: x for k, x in whole.items() if k >= 10}, rel=1e-5)
    assert list(log(tmp_path / "resumed", "train/loss")) == list(range(10, 20))
    assert 0 < log(tmp_path / "whole", "minutes")[9] < log(tmp_path / "whole", "minutes")[19]
    content = torch.load(middle, weights_only=True)
    content["nvs_run"]["seconds"] = 3600.0
    torch.save(content, tmp_path / "an_hour.ckpt")
    words[words.index("20")] = "11"
    assert train("later", *words, "--resume", str(tmp_path / "an_hour.ckpt")) == 0
    assert 60 < log(tmp_path / "later", "minutes")[10] < 120  # the clock goes on
    ends = [torch.load(tmp_path / f"{run}/last.ckpt", weights_only=True) for run in ("whole", "resumed")]
    assert ends[0]["global_step"] == 20
    for key in ("state_dict", "training_weights", "optimizer_states", "global_step"):
        assert same(ends[0][key], ends[1][key]), key
    assert same(ends[0]["nvs_run"]["random_state"], ends[1]["nvs_run"]["random_state"])


@pytest.mark.slow
@pytest.mark.parametrize("how", ["compiled", "ddp", "ddp_compiled"])
def test_checkpoints_of_wrapped_runs_load_and_resume(train, shared, tmp_path, monkeypatch, how):
    case = shared / "cases/14-resume-and-compiled-checkpoint/input"
    words = ["--data.scenes", str(case / "scenes/*"), "--training.save-every", "2"]
    assert train("run", *words) == 0
    mangled, middle = tmp_path / "mangled.ckpt", tmp_path / "mangled_middle.ckpt"
    mangle(case, tmp_path / "run/last.ckpt", mangled, how, monkeypatch)
    mangle(case, tmp_path / "run/previous.ckpt", middle, how, monkeypatch)
    scene = case / "scenes/s0"
    torch.testing.assert_close(
        rendering(mangled, scene), rendering(tmp_path / "run/last.ckpt", scene), atol=1e-6, rtol=0
    )
    assert train("resumed", *words, "--resume", str(middle)) == 0
    ends = [torch.load(tmp_path / f"{run}/last.ckpt", weights_only=True) for run in ("run", "resumed")]
    assert same(ends[0]["state_dict"], ends[1]["state_dict"])


def test_damaged_and_foreign_checkpoints_are_refused(train, shared, tmp_path, monkeypatch, capsys):
    case = shared / "cases/14-resume-and-compiled-checkpoint/input"
    words = ["--data.scenes", str(case / "scenes/*")]
    assert train("run", *words, "--training.max-steps", "2") == 0
    last = tmp_path / "run/last.ckpt"
    before = last.read_bytes()
    for how in ("truncated", "foreign_global"):
        bad = tmp_path / f"{how}.ckpt"
        mangle(case, last, bad, how, monkeypatch)
        for option in ("--resume", "--init-from"):
            capsys.readouterr()
            assert train("other", *words, option, str(bad)) == 1
            told = capsys.readouterr().err
            assert len(told.strip().splitlines()) == 1
            assert str(bad) in told and "Traceback" not in told
    assert last.read_bytes() == before
    assert not (tmp_path / "other/last.ckpt").exists()


def test_missing_weight_stops_the_resumption(train, capture, tmp_path, capsys):
    words = ["--data.scene", str(capture)]
    assert train("run", *words, "--training.max-steps", "1") == 0
    checkpoint = torch.load(tmp_path / "run/last.ckpt", weights_only=True)
    del checkpoint["state_dict"]["model.decode.weight"], checkpoint["training_weights"]["model.decode.weight"]
    torch.save(checkpoint, tmp_path / "holed.ckpt")
    assert train("other", *words, "--resume", str(tmp_path / "holed.ckpt")) == 1
    told = capsys.readouterr().err
    assert "decode.weight" in told.splitlines()[-1] and "Traceback" not in told


def test_run_and_data_may_be_moved(train, config, write_capture, tmp_path):
    scene = write_capture("balls")
    assert train("run", "--data.scene", str(scene), "--training.max-steps", "2") == 0
    before = rendering(tmp_path / "run/last.ckpt", scene)
    shutil.move(scene, tmp_path / "elsewhere")
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert torch.equal(rendering(tmp_path / "moved/last.ckpt", tmp_path / "elsewhere"), before)
    words = ["train", "--config", str(tmp_path / "moved/config.yaml"), "--output", str(tmp_path / "moved")]
    words += ["--resume", "last", "--data.scene", str(tmp_path / "elsewhere"), "--training.max-steps", "3"]
    assert main(words) == 0
    assert torch.load(tmp_path / "moved/last.ckpt", weights_only=True)["global_step"] == 3


def test_run_leaves_logs_sheets_settings_and_plain_checkpoints(train, write_capture, tmp_path):
    scene = write_capture("balls", alpha=True)
    words = ["--data.scene", str(scene), "--training.validate-every", "2", "--training.save-every", "2"]
    assert train("run", *words) == 0
    run = tmp_path / "run"
    assert {p.name for p in run.glob("*.ckpt")} == {"last.ckpt", "previous.ckpt", "best.ckpt"}
    assert [p.name for p in sorted(run.glob("sheets/*"))] == ["step_0000002.png", "step_0000004.png"]
    assert list(run.glob("tensorboard/events*"))
    assert not list(run.glob(".part*"))
    assert list(log(run, "val/psnr")) == [1, 3]
    assert log(run, "val/psnr_train_views") and log(run, "val/psnr_foreground")
    settings = yaml.safe_load((run / "config.yaml").read_text())
    assert settings["training"]["max_steps"] == 4
    assert settings["model"]["memory"]["init_args"]["head_dim"] == 16

    with pytest.raises(data.UserError, match=r"is a folder.*run/best\.ckpt"):
        nvs.load_model(run)
    model = nvs.load_model(run / "last.ckpt")
    assert model.trained is not None
    assert model.trained.views == (2, 3)
    assert model.trained.image_size == (32, 32)
    assert model.trained.steps == 4
    # Photos of 48x64 pixels with a focal length of 70 become 32x43, then 32x32.
    fov = math.degrees(2 * math.atan(16 / (70 * 43 / 64)))
    assert model.trained.fov_degrees == pytest.approx((fov, fov), abs=1e-3)


def test_loaded_weights_are_the_averaged_ones(train, capture, tmp_path):
    assert train("run", "--data.scene", str(capture), "--training.max-steps", "3") == 0
    checkpoint = torch.load(tmp_path / "run/last.ckpt", weights_only=True)
    weights = nvs.load_model(tmp_path / "run/last.ckpt").decode.weight
    assert torch.equal(weights, checkpoint["state_dict"]["model.decode.weight"])
    assert not torch.equal(weights, checkpoint["training_weights"]["model.decode.weight"])


def test_init_from_keeps_what_fits_and_lists_the_rest(train, capture, tmp_path, capsys):
    words = ["--data.scene", str(capture), "--training.max-steps", "1"]
    assert train("run", *words) == 0
    source = str(tmp_path / "run/last.ckpt")
    assert train("other", *words, "--model.memory.expansion", "1", "--init-from", source) == 0
    told = capsys.readouterr().err
    assert "blocks.0.memory.w0" in told
    assert "attention.qkv" not in told
    # With more layers and other sizes, weights without a size in common with the checkpoint start at random.
    assert train("deeper", *words, "--model.layers", "3", "--init-from", source) == 0
    assert "blocks.2." in capsys.readouterr().err


def test_init_from_of_another_width_starts_its_matrices_at_random(train, capture, tmp_path, capsys):
    words = ["--data.scene", str(capture), "--training.max-steps", "1"]
    assert train("run", *words) == 0
    other = ["--model.dim", "64", "--model.patch-size", "4", "--model.attention-head-dim", "32"]
    other += ["--model.memory.head_dim", "32", "--init-from", str(tmp_path / "run/last.ckpt")]
    capsys.readouterr()
    assert train("wider", *words, *other) == 0
    random = next(line for line in capsys.readouterr().err.splitlines() if "at their random start" in line)
    assert "decode.weight" in random and "blocks.0.memory.w0" in random


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ([], None),
        (["--model.layers", "24"], nvs.ModelConfig()),
        (["--config", str(ROOT / "configs/l24_d768_ttt2x.yaml")], nvs.ModelConfig()),
        (["--model.layers", "2"], nvs.ModelConfig(layers=2)),
    ],
)
def test_the_default_model_counts_as_chosen_only_where_it_is_stated(capture, monkeypatch, tmp_path, words, chosen):
    seen = []

    def note(*args):
        seen.append(args)
        raise data.UserError("enough")

    monkeypatch.setattr("apps.train.start_model", note)
    place = ["--data.scene", str(capture), "--data.input-views", "1", "2", "--data.target-views", "1", "1"]
    assert main(["train", *words, *place, "--init-from", "demo", "-o", str(tmp_path / "run")]) == 1
    assert seen == [(chosen, None, "demo")]


def test_init_from_without_a_model_takes_that_of_the_checkpoint(train, capture, tmp_path):
    words = ["--data.scene", str(capture), "--training.max-steps", "1"]
    assert train("run", *words) == 0
    common = ["--data.scene", str(capture), "--data.image-size", "32", "32", "--training.max-steps", "1"]
    common += ["--data.input-views", "2", "2", "--data.target-views", "1", "1", "--data.batch-size", "1"]
    assert main(["train", *common, "--init-from", str(tmp_path / "run/last.ckpt"), "-o", str(tmp_path / "b")]) == 0
    assert nvs.load_model(tmp_path / "b/last.ckpt").config == nvs.load_model(tmp_path / "run/last.ckpt").config


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--data.scenes"),
        (["--data.scene", "nowhere"], "nowhere"),
        (["--data.scenes", "nowhere/*"], "nowhere/*"),
        (["--data.scene", "CAPTURE", "--data.image-size", "36", "32"], "[32, 32]"),
        (["--data.scene", "CAPTURE", "--data.input-views", "2", "9"], "balls"),
        (["--data.scene", "CAPTURE", "--resume", "last"], "no checkpoint"),
        (["--data.scene", "CAPTURE", "--resume", "nowhere.ckpt"], "nowhere.ckpt"),
        (["--data.scene", "CAPTURE", "--init-from", "nowhere.ckpt"], "nowhere.ckpt"),
        (["--data.scene", "CAPTURE", "--training.wandb-project", "x"], "wandb"),
    ],
)
def test_failures_are_told_in_a_sentence(train, capture, capsys, words, told):
    assert train("run", *[str(capture) if word == "CAPTURE" else word for word in words]) == 1
    error = capsys.readouterr().err.strip()
    assert told in error.splitlines()[-1]
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "words", [["--training.max-steps", "0"], ["--data.input-views", "3", "2"], ["--data.sceene", "x"]]
)
def test_settings_that_cannot_work_are_wrong_usage(train, capsys, words):
    assert train("run", *words) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_perceptual_loss_without_weights_is_refused_at_once(train, capture, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NVS_LPIPS_WEIGHTS", str(tmp_path / "none.pth"))
    assert train("run", "--data.scene", str(capture), "--training.perceptual-weight", "0.5") == 1
    assert "none.pth" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_overwritten(train, capture, capsys):
    words = ["--data.scene", str(capture), "--training.max-steps", "1"]
    assert train("run", *words) == 0
    assert train("run", *words) == 1
    assert "--resume last" in capsys.readouterr().err


def test_settings_that_a_person_wrote_are_not_overwritten(train, capture, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    mine = tmp_path / "run/config.yaml"
    mine.write_text("# mine\n" + SMALL)
    words = ["--data.scene", str(capture), "--training.max-steps", "1"]
    assert train("run", *words) == 1
    assert "move it, or choose another --output" in capsys.readouterr().err
    assert mine.read_text() == "# mine\n" + SMALL and [p.name for p in mine.parent.iterdir()] == ["config.yaml"]
    mine.unlink()
    assert train("run", *words) == 0
    for checkpoint in mine.parent.glob("*.ckpt"):  # as after a run that failed before its first one
        checkpoint.unlink()
    assert train("run", *words) == 0


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_weight_decay_can_be_changed_when_a_run_goes_on(train, capture, tmp_path, optimizer, capsys):
    words = ["--data.scene", str(capture), "--training.optimizer", optimizer, "--training.max-steps"]
    assert train("run", *words, "1", "--training.weight-decay", "0.1") == 0
    assert train("run", *words, "2", "--training.weight-decay", "0.3", "--resume", "last") == 0
    assert "Going on from step 1, after 0." in "".join(capsys.readouterr())
    (state,) = torch.load(tmp_path / "run/last.ckpt", weights_only=True)["optimizer_states"]
    groups = [group for part in state.get("parts", [state]) for group in part["param_groups"]]
    assert {group["weight_decay"] for group in groups} == {0.3, 0.0}


@pytest.mark.parametrize(("name", "told"), [("previous", "--resume last"), ("best", "best.ckpt")])
def test_a_run_of_which_one_checkpoint_is_left_is_not_overwritten(train, capture, tmp_path, capsys, name, told):
    (tmp_path / "run").mkdir()
    (tmp_path / f"run/{name}.ckpt").write_bytes(b"precious")
    assert train("run", "--data.scene", str(capture)) == 1
    assert told in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "run").iterdir()] == [f"{name}.ckpt"]


def test_what_is_no_run_or_of_another_optimizer_is_not_resumed(train, capture, tmp_path, capsys):
    words = ["--data.scene", str(capture), "--training.max-steps", "1"]
    assert train("run", *words, "--training.optimizer", "muon") == 0
    before = (tmp_path / "run/config.yaml").read_bytes()
    model = nvs.load_model(tmp_path / "run/last.ckpt")
    nvs.save_model(model, tmp_path / "model.safetensors")
    checkpoint = torch.load(tmp_path / "run/last.ckpt", weights_only=True)
    torch.save({k: x for k, x in checkpoint.items() if k != "optimizer_states"}, tmp_path / "weights.ckpt")
    cases = {"last": "muon", str(tmp_path / "model.safetensors"): "no run", str(tmp_path / "weights.ckpt"): "no run"}
    for resume, told in cases.items():
        capsys.readouterr()
        assert train("run", *words, "--resume", resume) == 1
        error = capsys.readouterr().err
        assert told in error and "unexpected" not in error
    assert (tmp_path / "run/config.yaml").read_bytes() == before


def test_unreadable_best_checkpoint_does_not_stop_a_resumption(train, capture, tmp_path):
    words = ["--data.scene", str(capture), "--training.validate-every", "1"]
    assert train("run", *words, "--training.max-steps", "1") == 0
    best = tmp_path / "run/best.ckpt"
    best.write_bytes(best.read_bytes()[:5000])
    assert train("run", *words, "--training.max-steps", "2", "--resume", "last") == 0
    assert torch.load(tmp_path / "run/last.ckpt", weights_only=True)["global_step"] == 2


def test_nothing_to_train_on_is_told_before_the_network_is_built(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("apps.train.start_model", lambda *_: pytest.fail("the network was built"))
    assert main(["train", "-o", str(tmp_path / "run")]) == 1
    assert "--data.scenes" in capsys.readouterr().err


def test_unknown_accelerator_is_wrong_usage(train, capsys):
    assert train("run", "--training.accelerator", "foo") == 2
    assert "one of auto, cpu, gpu, mps" in capsys.readouterr().err


def test_resume_of_another_model_is_refused(train, capture, capsys):
    words = ["--data.scene", str(capture), "--training.max-steps", "1"]
    assert train("run", *words) == 0
    assert train("run", *words, "--resume", "last", "--model.layers", "1") == 1
    assert "layers" in capsys.readouterr().err


def test_time_limit_ends_the_run(train, capture, tmp_path):
    words = ["--data.scene", str(capture), "--training.max-steps", "100000", "--training.max-minutes", "0.02"]
    assert train("run", *words) == 0
    steps = torch.load(tmp_path / "run/last.ckpt", weights_only=True)["global_step"]
    assert 2 <= steps < 1000
    assert log(tmp_path / "run", "learning_rate")[steps - 1] < 1e-3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_interrupted_run_is_saved_and_resumes(config, capture, tmp_path):
    words = [sys.executable, "-m", "apps", "train", "--config", config, "--data.scene", str(capture)]
    words += ["--output", str(tmp_path / "run"), "--training.max-steps", "100000"]
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 90
    while not log(tmp_path / "run", "train/loss") and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130, process.stderr.read()
    steps = torch.load(tmp_path / "run/last.ckpt", weights_only=True)["global_step"]
    assert steps > 0
    subprocess.run([*words, "--resume", "last", "--training.max-steps", str(steps + 2)], cwd=ROOT, check=True)
    assert torch.load(tmp_path / "run/last.ckpt", weights_only=True)["global_step"] == steps + 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_train_one_model(config, capture, tmp_path):
    words = [sys.executable, "-m", "apps", "train", "--config", config, "--data.scene", str(capture)]
    words += ["--output", str(tmp_path / "run"), "--training.devices", "2", "--training.accelerator", "cpu"]
    subprocess.run(words, cwd=ROOT, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240)
    checkpoint = torch.load(tmp_path / "run/last.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 4
    assert all(name.startswith("model.") for name in checkpoint["state_dict"])
    nvs.load_model(tmp_path / "run/last.ckpt")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
def test_compiled_run_takes_the_same_steps(train, capture, tmp_path, no_shape_checks):
    words = ["--data.scene", str(capture), "--training.max-steps", "2", "--data.input-views", "2", "2"]
    words += ["--data.target-views", "1", "1", "--model.layers", "1"]
    assert train("plain", *words) == 0
    assert train("compiled", *words, "--training.compile") == 0
    plain, compiled = log(tmp_path / "plain", "train/loss"), log(tmp_path / "compiled", "train/loss")
    assert compiled == pytest.approx(plain, rel=1e-3)
    nvs.load_model(tmp_path / "compiled/last.ckpt")


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_configuration_is_read_and_its_model_can_be_built(path, tmp_path, monkeypatch, capsys):
    if path.stem.startswith("ablation"):
        assert main(["ablate", "--config", str(path), "--print_config"]) == 0
        assert yaml.safe_load(capsys.readouterr().out)["model"]["dim"] > 0
        return
    seen = []

    def start(*args):
        seen.append(args)
        raise data.UserError("enough")

    monkeypatch.setattr("apps.train.start_model", start)
    monkeypatch.setattr("apps.train.SceneData", lambda *_: SimpleNamespace(setup=lambda: None))
    assert main(["train", "--config", str(path), "-o", str(tmp_path)]) == 1
    ((model, _, init_from),) = seen
    # Without a model of its own, a configuration takes that of a shipped checkpoint.
    config = model or nvs.load_model(init_from).config
    with torch.device("meta"):
        count = sum(p.numel() for p in nvs.LaCT(config).parameters())
    if path.stem.startswith(("demo", "baseline")):
        assert 2 * count < 16e6, "more than 16 MB in bfloat16"


def test_shipped_model_is_tuned_to_a_scene_and_judged_on_what_was_held_out(write_capture, tmp_path, capsys):
    scene, run = write_capture("balls", 12), tmp_path / "run"
    words = ["--data.scene", str(scene), "--data.batch-size", "1", "--training.max-steps", "2", "-o", str(run)]
    assert main(["train", "--config", str(ROOT / "configs/finetune_scene.yaml"), *words]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[-1].startswith("Best on held-out photos, ") and told[-1].endswith(f"dB: {run / 'best.ckpt'}")
    demo, tuned = nvs.load_model("demo"), nvs.load_model(run / "best.ckpt")
    assert tuned.config == demo.config and tuned.trained is not None
    assert tuned.trained.holdout_every == 8 and tuned.trained.image_size == (64, 64)
    assert "1 captures with 11 training photos, 1 held out" in "\n".join(told)
    (judged,) = evaluate(tuned, [scene], Settings(), Unavailable("not in this test")).results
    assert [Path(name).name for name in judged.targets] == ["004.png"]


def mangle(case: Path, source: Path, target: Path, how: str, monkeypatch) -> None:
    """Rewrite a checkpoint the way other runs write it, with the case's own script."""
    monkeypatch.setattr(sys, "argv", ["mangle_checkpoint.py", str(source), str(target), how])
    try:
        runpy.run_path(str(case / "mangle_checkpoint.py"))
    except SystemExit as end:
        assert end.code is None
