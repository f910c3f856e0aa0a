"""The Triton operators without a GPU: in Triton's interpreter, and compiled for real GPUs."""

import os
import re
import subprocess
import sys
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kernels import inspect_build, launch
from kernels.launch import Tiles

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("triton", reason="Triton exists for Linux only")


def run(*command: str, interpret: bool) -> subprocess.CompletedProcess[str]:
    """Run Python with Triton's interpreter on or off, which is decided when Triton is imported."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if interpret:
        environment["TRITON_INTERPRET"] = "1"
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_operators_in_the_interpreter():
    done = run(
        *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:logging", "--tb=short", "--timeout=1200"),
        "tests/kernels/interpreter_operators.py",
        "tests/kernels/interpreter_selftest.py",
        interpret=True,
    )
    assert done.returncode == 0, done.stdout[-4000:]


def test_kernels_import_without_triton():
    done = run("-c", "import sys; sys.modules['triton'] = None; import kernels", interpret=False)
    assert done.returncode == 0, done.stderr
    code = "import sys, kernels; print('kernels.triton_swiglu' in sys.modules)"
    assert run("-c", code, interpret=False).stdout.strip() == "False"


def test_one_build_uses_tensor_cores():
    code = (
        "from kernels import inspect_build as i; build = next(i.all_builds(['sm_90'], ['token_product']));"
        "report = i.compile_build(build); print(report.dtype, report.tensor_core > 0, report.shared > 0, report.faults)"
    )
    done = run("-c", code, interpret=False)
    assert done.stdout.strip() == "bf16 True True ()", done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_build_is_without_fault():
    # Side by side, because compiling takes most of the time of these tests.
    with ThreadPoolExecutor() as pool:
        commands = [("-m", "kernels.inspect_build", "--target", target) for target in inspect_build.TARGETS]
        for done in pool.map(lambda command: run(*command, interpret=False), commands):
            assert done.returncode == 0, done.stdout + done.stderr[-2000:]
            assert re.fullmatch(r"[1-9]\d+ builds, 0 with faults", done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_build_that_spills_and_needs_too_much_memory_has_faults():
    code = (
        "import dataclasses as d; from kernels import inspect_build as i;"
        "build = next(i.all_builds(['sm_80'], ['hidden']));"
        "big = d.replace(build, constants=build.constants | {'BM': 128, 'BN': 256, 'BK': 64}, warps=4, stages=4);"
        "print(i.compile_build(big).faults)"
    )
    done = run("-c", code, interpret=False)
    assert "spills" in done.stdout and "shared memory" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("old", "new", "expected"), [(False, None, "ieee"), (True, None, "tf32"), (False, "tf32", "tf32")]
)
def test_tf32_only_where_pytorch_was_told_to_use_it(monkeypatch, old, new, expected):
    given = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, PRECISION, **constants: given.append(PRECISION)

    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    try:
        matmul.allow_tf32 = old
        if new:
            matmul.fp32_precision = new
        launch.launch("hidden", Kernel(), lambda t: 1, torch.zeros(1))
    finally:
        matmul.fp32_precision = before
    assert given == [expected]


def test_tiles_that_do_not_fit_fall_to_smaller_ones_told_once(monkeypatch):
    from triton.runtime.errors import OutOfResources

    tried = []

    class Kernel:
        def __getitem__(self, grid):
            def call(*args, BM, **constants):
                tried.append(BM)
                if BM > 64:
                    raise OutOfResources(200_000, 100_000, "shared memory")

            return call

    monkeypatch.setattr(launch, "family_of", lambda device: "sm_90")
    monkeypatch.setattr(launch, "_fitting", {})
    half = torch.zeros(1, dtype=torch.bfloat16)
    with pytest.warns(UserWarning, match="kernel hidden: .* does not fit this GPU"):
        launch.launch("hidden", Kernel(), lambda t: 1, half)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch.launch("hidden", Kernel(), lambda t: 1, half)
    assert tried == [128, 64, 64]


@pytest.mark.parametrize(
    ("major", "minor", "shared", "family"),
    [
        (8, 0, 166912, "sm_80"),
        (8, 9, 101376, "sm_80"),
        (9, 0, 232448, "sm_90"),
        (10, 0, 232448, "sm_90"),
        (12, 0, 101376, "sm_80"),
    ],
)
def test_a_gpu_without_a_row_gets_one_that_fits(monkeypatch, major, minor, shared, family):
    properties = types.SimpleNamespace(major=major, minor=minor, shared_memory_per_block_optin=shared)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert launch.family_of(torch.device("cuda", 0)) == family


def test_the_last_choice_of_every_kernel_is_small():
    for family, rows in launch.TABLE.items():
        for kernel, tiles in rows.items():
            last = tiles[-1]
            assert last.m * last.n <= 64 * 64 and last.stages <= 2, (family, kernel)
            assert all(isinstance(t, Tiles) for t in tiles)
