"""The script for GPUs, tried out without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kernels
from kernels import benchmark, gpu_check

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_passes_in_the_interpreter_at_tiny_sizes(tmp_path):
    pytest.importorskip("triton", reason="Triton exists for Linux only")
    command = [sys.executable, "-m", "kernels.gpu_check", "--out", str(tmp_path), "--minutes", "20"]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = json.loads((tmp_path / "check.json").read_text())
    assert len(cases) == 16 and all(case["passed"] for case in cases)


def test_a_wrong_operator_fails(monkeypatch):
    def off_by_a_percent(k):
        return k * (1.01 if kernels.current_backend() == "triton" else 1.0)

    monkeypatch.setattr(gpu_check, "operators", lambda dtype: {"wrong": (off_by_a_percent, ("k",))})
    case = gpu_check.check("wrong", (1, 2, 3, 4), torch.float32, "cpu")
    assert not case.passed and case.value > 1 and case.gradient > 1


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
