"""The script for GPUs, tried out without one."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import kernels
from kernels import benchmark, gpu_check
from nvs import gpu_benchmark

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_it_passes_in_the_interpreter_at_tiny_sizes(tmp_path):
    pytest.importorskip("triton", reason="Triton exists for Linux only")
    command = [sys.executable, "-m", "kernels.gpu_check", "--out", str(tmp_path), "--minutes", "40"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads((tmp_path / "check.json").read_text())
    assert len(cases) == 22 and all(case["passed"] for case in cases)
    rows = json.loads((tmp_path / "operators.json").read_text())
    assert {row["operator"] for row in rows} >= {"silu_unit, backward", "rms_norm", "embed_rays, backward"}
    errors, *rows = json.loads((tmp_path / "model.json").read_text())
    assert errors["picture_errors"]["triton"] < 1e-4
    jobs = {"render 1", "render 8", "encode", "training step"}
    assert {(row["job"], row["implementation"]) for row in rows} == {(j, i) for j in jobs for i in ("plain", "triton")}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [part["outcome"] for part in summary["parts"].values()] == ["done"] * 3


def test_the_programs_for_a_gpu_do_not_need_what_is_for_films_meshes_and_commands():
    absent = [
        "open3d",
        "kornia",
        "gradio",
        "imageio_ffmpeg",
        "jsonargparse",
        "lightning",
        "matplotlib",
        "pycolmap",
        "webdataset",
    ]
    code = f"import sys; sys.modules.update(dict.fromkeys({absent})); import kernels.gpu_check, nvs.gpu_benchmark"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_part_that_crashes_or_hangs_costs_only_itself(tmp_path, monkeypatch):
    (tmp_path / "crashes.py").write_text("import os; os.abort()")
    (tmp_path / "hangs.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "failed with exit code" in str(gpu_check.run_part("crashes", [], 30)["outcome"])
    assert gpu_check.run_part("hangs", [], 1)["outcome"] == "stopped, out of time"


def test_a_wrong_operator_fails(monkeypatch):
    def off_by_a_percent(k):
        return k * (1.01 if kernels.current_backend() == "triton" else 1.0)

    monkeypatch.setattr(gpu_check, "operators", lambda dtype: {"wrong": (off_by_a_percent, ("k",))})
    case = gpu_check.check("wrong", (1, 2, 3, 4), torch.float32, "cpu")
    assert not case.passed and case.value > 1 and case.gradient > 1


def broken(*arguments):
    raise ValueError("no such kernel\nand more")


def test_a_case_that_raises_is_told_and_the_others_go_on(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_check, "operators", lambda dtype: {"broken": (broken, ("k",)), "fine": (torch.exp, ("k",))})
    monkeypatch.setattr(gpu_check, "interpreting", lambda: True)
    assert gpu_check.run_checks(tmp_path, 1) == 1
    first, second, *_ = json.loads((tmp_path / "check.json").read_text())
    assert (first["error"], first["passed"], second["passed"]) == ("no such kernel", False, True)


def test_an_operator_that_raises_costs_only_its_own_row(monkeypatch, capsys):
    given = {
        "rms_norm": benchmark.Job(broken, ()),
        "silu_unit": benchmark.Job(kernels.silu_unit, (torch.ones(1, 2, 3),)),
    }
    monkeypatch.setattr(benchmark, "jobs", lambda *size: given)
    assert [row.operator for row in benchmark.measure("cpu", 1)] == ["silu_unit"]
    assert "skipped rms_norm, plain, small: no such kernel" in capsys.readouterr().err


def test_a_model_that_fails_on_triton_is_timed_on_plain_pytorch(monkeypatch, capsys):
    monkeypatch.setattr(gpu_benchmark, "_triton_here", lambda device: True)
    monkeypatch.setattr(gpu_benchmark.Bench, "picture_errors", broken)
    rows = list(gpu_benchmark.measure("cpu", 1))
    jobs = ["render 1", "render 8", "encode", "training step"]
    assert [(row["job"], row["implementation"]) for row in rows] == [(job, "plain") for job in jobs]
    told = capsys.readouterr().err
    assert told.count("skipped") == 5 and "skipped picture errors, tiny, 2 views of 16x16: no such kernel" in told


def test_operations_of_the_published_model():
    size = replace(gpu_benchmark.GPU_SIZES[1], image_size=(256, 256), inputs=8)
    bench = SimpleNamespace(size=size)
    # From the published sizes: 15.61 TFLOP with a last block that answers every input token, (20 + 6 r) d^2 each.
    encode = gpu_benchmark.Bench.operations(bench, "encode")  # type: ignore[arg-type]
    assert encode == pytest.approx(15.61e12 - 8192 * (20 + 6 * 4) * 768**2, rel=1e-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_it_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert gpu_check.main(["--out", str(tmp_path)]) == 2
    assert "needs a GPU, or TRITON_INTERPRET=1" in capsys.readouterr().err
    assert benchmark.main(["--tune"]) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_benchmark_runs_a_small_size_on_the_cpu(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmark, "CPU_SIZES", (("tiny", 1, 8, 4, 6),))
    assert benchmark.main(["--json", str(tmp_path / "rows.json")]) == 0
    printed = capsys.readouterr().out
    assert "no GPU here" in printed and "fast_weight_gradients, backward" in printed
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert {row["operator"] for row in rows} >= {"apply_swiglu", "orthogonalize gram", "linear_state"}
    assert all(row["milliseconds"] > 0 and row["share"] is None for row in rows)
