"""`nvs bench` on a model that takes no time, and what it refuses."""

import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import yaml

from apps import bench_peak
from apps.bench import WORDS
from apps.bench_model import _training_tasks, tiny_cpu
from apps.bench_peak import CLEAR, ModelChoice, measure_peaks, peak_bytes
from apps.cli import main
from nvs import LaCT, ModelConfig, save_model
from nvs.memory import LaCTConfig
from nvs.precision import has_bfloat16

SMALL = ["--dim", "64", "--layers", "1", "--image-size", "16", "16", "--inputs", "2", "--runs", "1"]
QUICK = [*SMALL, "--memory-inputs", "0", "--no-train"]


@pytest.fixture(autouse=True)
def same_threads():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_tasks_are_timed_and_progress_is_told(capsys):
    assert main(["bench", *QUICK, "--threads", "1"]) == 0
    told = capsys.readouterr()
    assert "2 input views of 16x16, 1 CPU threads, 1 interleaved runs" in " ".join(told.out.split())
    rows = [line for line in told.out.splitlines() if " s " in line]
    assert [any(task in row for row in rows) for task in ("render one view", "encode 2 views")] == [True, True]
    assert "round 1 of 1" in told.err


def test_processor_time_is_less_than_time_that_passes(capsys):
    from apps import bench_model

    clocks = (time.process_time, time.perf_counter)
    (slept, passed) = (bench_model._interleave({"task": {"way": lambda: time.sleep(0.05)}}, 1, c) for c in clocks)
    assert slept["task"]["way"][0] < 0.04 < passed["task"]["way"][0]
    assert main(["bench", *QUICK, "--processor-time"]) == 0
    assert "processor time" in capsys.readouterr().err


def kill_me(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)


def test_peak_memory_is_left_out_where_the_system_forbids_it(monkeypatch):
    def forbidden(*arguments):
        raise PermissionError("clear_refs: not permitted")

    monkeypatch.setattr(bench_peak, "peak_bytes", forbidden)
    monkeypatch.setattr(bench_peak, "ProcessPoolExecutor", lambda *_, **__: ThreadPoolExecutor(1))
    told = []
    assert measure_peaks(ModelChoice(None, 64, 1, 2, (16, 16)), 2, 16, 1, told.append) == {}
    assert told == ["peak memory is not measured: clear_refs: not permitted"]


@pytest.mark.skipif(not CLEAR.exists(), reason="this system does not tell peak memory")
def test_a_measuring_process_that_is_killed_is_told(monkeypatch):
    monkeypatch.setattr(bench_peak, "peak_bytes", kill_me)
    told = []
    assert measure_peaks(ModelChoice(None, 64, 1, 2, (16, 16)), 2, 16, 1, told.append) == {}
    assert "was killed, perhaps for want of memory; lower --memory-inputs" in told[0]


def test_bfloat16_pays_where_cpu_and_library_have_it(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    for capabilities, pays in (({"avx512_bf16": True}, True), ({"bf16": True}, True), ({"avx512_f": True}, False)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda given=capabilities: given)
        assert has_bfloat16("cpu") is pays
    assert not has_bfloat16("mps")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"bf16": True})
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not has_bfloat16("cpu")
    monkeypatch.undo()
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not has_bfloat16("cpu")


@pytest.mark.slow
def test_training_and_peak_memory(capsys):
    assert main(["bench", *SMALL, "--memory-inputs", "2", "--threads", "1"]) == 0
    told = capsys.readouterr().out
    assert "training step of tiny_cpu" in told and "peak memory, encode 2 views" in told


def test_the_training_task_is_that_of_the_shipped_configuration():
    settings = yaml.safe_load((Path(__file__).parents[2] / "configs/tiny_cpu.yaml").read_text())["model"]
    memory = LaCTConfig(**settings.pop("memory"))
    assert tiny_cpu() == ModelConfig(**settings, memory=memory)


def test_both_versions_take_the_same_training_step():
    torch.manual_seed(0)
    losses = {way: step().item() for way, step in _training_tasks()["training step of tiny_cpu"].items()}
    assert losses["ours fp32"] == pytest.approx(losses["plain fp32"], rel=1e-4)
    assert losses["ours bf16"] == pytest.approx(losses["plain fp32"], rel=2e-2)


def test_the_training_step_in_the_other_form_and_compiled(monkeypatch):
    compiled = []
    monkeypatch.setattr(LaCT, "compile_blocks", lambda model: compiled.append(model))
    torch.manual_seed(0)
    tasks = _training_tasks("gram", compile=True)["training step of tiny_cpu"]
    assert [model.config.memory.newton_schulz_form for model in compiled] == ["gram", "gram"]
    losses = {way: tasks[way]().item() for way in ("plain fp32", "ours fp32")}
    assert losses["ours fp32"] == pytest.approx(losses["plain fp32"], rel=1e-3)


def test_the_faster_form_is_named(capsys):
    assert main(["bench", *QUICK, "--newton-schulz-form", "gram"]) == 0
    assert ", gram" in capsys.readouterr().err


@pytest.mark.skipif(not CLEAR.exists(), reason="needs Linux")
def test_peak_memory_is_what_was_held_at_most():
    choice = ModelChoice(None, 64, 1, 2, (64, 64))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        whole, sliced = (pool.apply(peak_bytes, (choice, "ours fp32", 64, size, 1)) for size in (4096, 64))
    assert 0 < sliced < whole


@pytest.mark.parametrize("word", WORDS)
def test_every_word_has_help(capsys, word):
    assert main(["bench", *word.split(), "--help"]) == 0
    assert f"usage: nvs bench {word}".strip() in capsys.readouterr().out


def test_an_unknown_word(capsys):
    assert main(["bench", "memry"]) == 2
    assert "did you mean memory?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threads", "0"], "--threads 0 is not possible"),
        (["--runs", "0"], "--runs 0 is not possible"),
        (["--memory-inputs", "-1"], "--memory-inputs -1 is not possible"),
        (["--slice-tokens", "0"], "--slice-tokens 0 is not possible"),
        (["--inputs", "-1"], "--inputs -1 is not possible"),
        (["--dim", "100"], "model dim 100 must be a multiple"),
        (["--layers", "0"], "layers must be a whole number of 1 or more"),
        (["--expansion", "0"], "expansion must be a whole number of 1 or more"),
        (["--image-size", "0", "0"], "0x0 cannot be cut into patches"),
        (["--image-size", "30", "32"], "nearest size is 32x32"),
        (["--checkpoint", "none.pt"], "there is no checkpoint"),
        (["--compile"], "give one of them"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(capsys, words, message):
    assert main(["bench", *QUICK, *words]) == 1
    told = capsys.readouterr().err
    assert message in told and "unexpected" not in told and told.count("\n") == 1


def test_a_model_that_the_plain_version_does_not_know(tmp_path, capsys):
    memory = LaCTConfig(head_dim=32, inner_steps=2)
    save_model(
        LaCT(ModelConfig(dim=32, layers=1, attention_head_dim=32, memory=memory)), tmp_path / "other.safetensors"
    )
    assert main(["bench", "--checkpoint", str(tmp_path / "other.safetensors"), "--runs", "1"]) == 1
    assert "cannot be timed" in capsys.readouterr().err
