"""One call that proves the Triton operators on a GPU, then times them.

`python -m kernels.gpu_check --out DIR` checks values and gradients in fp32, bf16 and fp16 at odd and published sizes,
then runs `kernels.benchmark`, all within `--minutes`. It writes DIR/check.json after every case, so that a run that is
cut short keeps what it has. With TRITON_INTERPRET=1 it runs on the CPU in fp32, at tiny sizes and without timings.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

import kernels
from kernels import reference
from kernels.launch import interpreting

VALUE_FACTOR, GRADIENT_FACTOR = 2.0, 3.0
"""An operator's error may be this many times the reference's in the same dtype, both against float64."""

ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2e-3, torch.float16: 3e-4}
"""Relative error that any order of summation is allowed: a fraction of the spacing of the dtype's numbers."""

TERM = torch.finfo(torch.float32).eps
"""Absolute error of every number: a gradient that cancels to nothing keeps the rounding of its terms of size 1."""

ODD_SIZES = [(2, 63, 100, 200), (1, 1, 16, 32), (3, 100, 63, 63), (1, 1000, 768, 1536)]
"""(matrices, tokens, width, hidden width)."""

TINY_SIZES = [(2, 20, 9, 12), (1, 1, 1, 1)]


@dataclass(frozen=True)
class Case:
    """One operator at one size and dtype: largest error over what is allowed, for values and for gradients."""

    operator: str
    size: tuple[int, int, int, int]
    dtype: str
    value: float
    gradient: float
    passed: bool


def operators(dtype: torch.dtype) -> dict[str, tuple[Callable[..., Tensor | tuple[Tensor, ...]], tuple[str, ...]]]:
    """Every operator with the names of its inputs; matrix iterations run in `dtype`, or float64 for the truth."""

    def orthogonalize(form: reference.Form) -> Callable[[Tensor], Tensor]:
        return lambda g: kernels.orthogonalize(
            g, 5, torch.float64 if g.dtype == torch.float64 else dtype, "muon5", form
        )

    return {
        "apply_swiglu": (kernels.apply_swiglu, ("w0", "w1", "w2", "k")),
        "swiglu_features": (kernels.swiglu_features, ("w0", "w2", "k")),
        "fast_weight_gradients": (kernels.fast_weight_gradients, ("w0", "w1", "w2", "k", "v", "lr0", "lr1", "lr2")),
        "last_weight_gradient": (kernels.last_weight_gradient, ("w0", "w2", "k", "v", "lr1")),
        "orthogonalize": (orthogonalize("standard"), ("w1",)),
        "orthogonalize gram": (orthogonalize("gram"), ("w0",)),
        "add_and_restore_norm": (kernels.add_and_restore_norm, ("w0", "w2")),
        "linear_state": (kernels.linear_state, ("k", "v", "lr0")),
    }


def inputs(size: tuple[int, int, int, int], device: str) -> dict[str, Tensor]:
    """Random fast weights, keys, values and rates with the magnitudes of a fresh model, in float64."""
    b, n, d, f = size
    generator = torch.Generator().manual_seed(b * n + d + f)
    shapes = {"w0": (b, d, f), "w1": (b, f, d), "w2": (b, d, f), "k": (b, n, d), "v": (b, n, d)}
    scales = {"w0": (2 / d) ** 0.5, "w1": (2 / f) ** 0.5, "w2": (2 / d) ** 0.5, "k": 1.0, "v": 1.0}
    made = {name: torch.randn(s, generator=generator).double() * scales[name] for name, s in shapes.items()}
    made |= {f"lr{i}": torch.rand(b, n, 1, generator=generator).double() for i in range(3)}
    return {name: x.to(device) for name, x in made.items()}


def check(name: str, size: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> Case:
    """Compare Triton and the reference, both in `dtype`, with the reference in float64 on the same numbers."""
    call, names = operators(dtype)[name]
    arguments = [inputs(size, device)[n].to(dtype) for n in names]
    truth = _run(call, [x.double() for x in arguments], "reference")
    plain, ours = _run(call, arguments, "reference"), _run(call, arguments, "triton")
    worst = {"value": 0.0, "gradient": 0.0}
    for i, (exact, same, result) in enumerate(zip(truth, plain, ours, strict=True)):
        kind, factor = ("value", VALUE_FACTOR) if i < len(truth) - len(names) else ("gradient", GRADIENT_FACTOR)
        allowed = factor * (same - exact).norm() + ROUNDING[dtype] * exact.norm() + TERM * exact.numel() ** 0.5
        share = ((result - exact).norm() / allowed).item()
        worst[kind] = max(worst[kind], share if share == share else float("inf"))
    return Case(name, size, str(dtype).removeprefix("torch."), **worst, passed=max(worst.values()) <= 1)


def _run(
    call: Callable[..., Tensor | tuple[Tensor, ...]], arguments: list[Tensor], backend: kernels.Backend
) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in arguments]
    with kernels.use_backend(backend):
        results = call(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        generator = torch.Generator().manual_seed(1)
        upstream = [torch.randn(r.shape, generator=generator).to(r) for r in results]
        gradients = torch.autograd.grad(results, leaves, upstream)
    return [x.detach().double() for x in (*results, *gradients)]


def main(arguments: list[str] | None = None) -> int:
    """Check, then time; 1 if a case failed, 2 if nothing can run here."""
    parser = argparse.ArgumentParser(prog="python -m kernels.gpu_check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for check.json and benchmark.json")
    parser.add_argument("--minutes", type=float, default=7.0, help="stop starting new cases after this time")
    options = parser.parse_args(arguments)
    start, tiny = time.monotonic(), interpreting()
    if not torch.cuda.is_available() and not tiny:
        print("gpu_check needs a GPU, or TRITON_INTERPRET=1 to try itself out on the CPU", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    device = "cpu" if tiny else "cuda"
    # New memory holds NaN, so that an output left unwritten fails.
    torch.use_deterministic_algorithms(True, warn_only=True)
    cases: list[Case] = []
    for dtype in (torch.float32,) if tiny else (torch.bfloat16, torch.float32, torch.float16):
        for size in TINY_SIZES if tiny else ODD_SIZES:
            for name in operators(dtype):
                # Half of the time is kept for the benchmark.
                if time.monotonic() - start > options.minutes * 30:
                    break
                cases.append(check(name, size, dtype, device))
                (options.out / "check.json").write_text(json.dumps([asdict(case) for case in cases], indent=1))
                print(f"{'ok  ' if cases[-1].passed else 'FAIL'} {cases[-1]}", flush=True)
    torch.use_deterministic_algorithms(False)
    failed = [case for case in cases if not case.passed]
    print(f"{len(cases)} cases, {len(failed)} failed, {time.monotonic() - start:.0f} s")
    if not tiny:
        from kernels import benchmark

        left = options.minutes - (time.monotonic() - start) / 60
        benchmark.main(["--json", str(options.out / "benchmark.json"), "--minutes", str(left)])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
