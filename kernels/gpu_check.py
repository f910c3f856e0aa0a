"""One call that proves the Triton operators on a GPU, then times them and the model.

`python -m kernels.gpu_check --out DIR` runs three programs one after the other, within `--minutes` together:

- this one with `--only-check`: values and gradients in bf16, fp32 and fp16, at odd and published sizes -> check.json;
- `kernels.benchmark`: every operator against plain and compiled PyTorch -> operators.json;
- the program that `--also` names: encoding, rendering and a training step of the published sizes -> model.json.

Each is a process of its own, so that a crash or a hang costs only its part, and writes its file after every result.
With TRITON_INTERPRET=1 all of it runs on the CPU in fp32 at tiny sizes, to try the script out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
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

GPU_SIZES = [(1, 1000, 768, 1536), (2, 63, 100, 200), (3, 100, 63, 63), (1, 1, 16, 32)]
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
    error: str = ""
    """What was raised instead of a result."""


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
        "silu_unit": (kernels.silu_unit, ("k",)),
        "rms_norm": (kernels.rms_norm, ("k", "gain")),
        "embed_rays": (_embed_rays, ("projection", "images")),
    }


def _embed_rays(projection: Tensor, images: Tensor) -> Tensor:
    """Tokens of two cameras that look at the origin from the left and the right; rays keep 32 bits or more."""
    dtype = torch.promote_types(images.dtype, torch.float32)
    angles = torch.tensor([-0.7, 0.6], dtype=dtype, device=images.device)
    cos, sin, no, one = angles.cos(), angles.sin(), torch.zeros_like(angles), torch.ones_like(angles)
    rows = ((cos, no, sin, -2 * sin), (no, one, no, no + 0.3), (-sin, no, cos, -2 * cos), (no, no, no, one))
    c2w = torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)
    h, w = images.shape[2:]
    intrinsics = torch.tensor([[1.1 * w, 1.2 * w, 0.4 * w, 0.5 * h]], dtype=dtype, device=images.device).expand(2, 4)
    return kernels.embed_rays(projection, c2w, intrinsics, images, (h, w), 8)


def inputs(size: tuple[int, int, int, int], device: str) -> dict[str, Tensor]:
    """Random fast weights, keys, values and rates with the magnitudes of a fresh model, in float64."""
    b, n, d, f = size
    generator = torch.Generator().manual_seed(b * n + d + f)
    shapes = {"w0": (b, d, f), "w1": (b, f, d), "w2": (b, d, f), "k": (b, n, d), "v": (b, n, d)}
    scales = {"w0": (2 / d) ** 0.5, "w1": (2 / f) ** 0.5, "w2": (2 / d) ** 0.5, "k": 1.0, "v": 1.0}
    made = {name: torch.randn(s, generator=generator).double() * scales[name] for name, s in shapes.items()}
    rows = max(1, int(n**0.5))
    made |= {
        "gain": 1 + 0.1 * torch.randn(d, generator=generator).double(),
        "projection": torch.randn(d, 768, generator=generator).double() * 0.02,
        "images": torch.rand(2, 3, 8 * rows, 8 * rows + 8, generator=generator).double(),
    }
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
    return Case(
        name, size, str(dtype).removeprefix("torch."), worst["value"], worst["gradient"], max(worst.values()) <= 1
    )


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


def run_checks(out: Path, minutes: float) -> int:
    """Check every operator and write DIR/check.json after each; 1 if one failed."""
    end, tiny = time.monotonic() + minutes * 60, interpreting()
    device = "cpu" if tiny else "cuda"
    # New memory holds NaN, so that an output left unwritten fails.
    torch.use_deterministic_algorithms(True, warn_only=True)
    cases: list[Case] = []
    todo = [
        (name, size, dtype)
        for dtype in ((torch.float32,) if tiny else (torch.bfloat16, torch.float32, torch.float16))
        for size in (TINY_SIZES if tiny else GPU_SIZES)
        for name in operators(dtype)
    ]
    for name, size, dtype in todo:
        if time.monotonic() > end:
            break
        try:
            cases.append(check(name, size, dtype, device))
        except Exception as error:  # a compiler or driver may raise anything; the other cases still count
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            never = float("inf")
            cases.append(Case(name, size, str(dtype).removeprefix("torch."), never, never, False, reason))
        (out / "check.json").write_text(json.dumps([asdict(case) for case in cases], indent=1))
        print(f"{'ok  ' if cases[-1].passed else 'FAIL'} {cases[-1]}", flush=True)
    failed = sum(not case.passed for case in cases)
    print(f"{len(cases)} of {len(todo)} cases, {failed} failed", flush=True)
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    """Check, then time; 1 if a part failed, 2 if nothing can run here."""
    parser = argparse.ArgumentParser(prog="python -m kernels.gpu_check", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--minutes", type=float, default=7.0, help="time for all parts together")
    parser.add_argument("--only-check", action="store_true", help="check the operators and time nothing")
    parser.add_argument(
        "--also", default="nvs.gpu_benchmark", help="program to run last, with --out and --minutes ('' for none)"
    )
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available() and not interpreting():
        print("gpu_check needs a GPU, or TRITON_INTERPRET=1 to try itself out on the CPU", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only_check:
        return run_checks(options.out, options.minutes)
    end = time.monotonic() + options.minutes * 60
    out, summary = str(options.out), {}
    # (program, its options, share of the time that is then left)
    parts = [("kernels.gpu_check", ["--only-check", "--out", out], 0.3)]
    parts.append(("kernels.benchmark", ["--json", str(options.out / "operators.json")], 0.45 if options.also else 1.0))
    parts += [(options.also, ["--out", out], 1.0)] if options.also else []
    for program, settings, share in parts:
        minutes = (end - time.monotonic()) / 60 * share
        summary[program] = run_part(program, [*settings, "--minutes", f"{minutes:.2f}"], minutes * 60 + 20)
        (options.out / "summary.json").write_text(json.dumps({**machine(), "parts": summary}, indent=1))
    failed = [program for program, part in summary.items() if part["outcome"] != "done"]
    print(f"not done: {', '.join(failed)}" if failed else "all parts done")
    return 1 if failed else 0


def run_part(program: str, settings: list[str], seconds: float) -> dict[str, str | float]:
    """Run a program of this environment for at most `seconds`; what became of it and how long it took."""
    start = time.monotonic()
    try:
        code = subprocess.run([sys.executable, "-m", program, *settings], timeout=max(seconds, 1)).returncode
        outcome = "done" if code == 0 else f"failed with exit code {code}"
    except subprocess.TimeoutExpired:
        outcome = "stopped, out of time"
    print(f"{program}: {outcome} after {time.monotonic() - start:.0f} s", flush=True)
    return {"outcome": outcome, "seconds": round(time.monotonic() - start, 1)}


def machine() -> dict[str, str]:
    """What the results were made with."""
    import triton

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none, Triton's interpreter"
    return {"gpu": gpu, "torch": torch.__version__, "triton": triton.__version__, "python": sys.version.split()[0]}


if __name__ == "__main__":
    sys.exit(main())
