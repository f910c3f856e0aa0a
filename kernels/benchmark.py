"""Speed of every operator: Triton against plain and compiled PyTorch.

`python -m kernels.benchmark [--json FILE] [--tune]` prints medians in milliseconds, the rate in TFLOP/s and, on a
GPU, its share of the rate of a large matrix product measured in the same run; Triton is timed as a replayed CUDA graph,
too. Without a GPU it says so and runs a small size on the CPU. `--tune` times many tile sizes of every kernel instead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kernels
from kernels import launch

# (name, scenes, tokens, width, hidden width): 8 views of 256x256, 32 views of 536x960, one view rendered.
GPU_SIZES = (
    ("l14_d768_ttt2x 256x256x8", 1, 8192, 768, 1536),
    ("l24_d768_ttt4x 536x960x32", 1, 257280, 768, 3072),
    ("l24_d768_ttt4x 256x256x1", 1, 1024, 768, 3072),
)
CPU_SIZES = (("small", 1, 512, 256, 512),)


@dataclass(frozen=True)
class Row:
    """Median time of one operator at one size with one implementation."""

    operator: str
    size: str
    dtype: str
    implementation: str
    milliseconds: float
    tflops: float
    share: float | None
    """Of the measured matrix-product rate; None on a CPU."""


def floating_point_operations(operator: str, b: int, n: int, d: int, f: int) -> float:
    """Multiply-adds (two each) of the plain algorithm, so that saved work shows as a higher rate."""
    product = 2.0 * b * n * d * f
    short, ratio = min(d, f), max(d, f) / min(d, f)
    iterations = 5 * (4 * ratio + 2) * short**3 * b
    return {
        "apply_swiglu": 3 * product,
        "apply_swiglu, backward": 9 * product,
        "fast_weight_gradients": 6 * product,
        "fast_weight_gradients, backward": 18 * product,
        "orthogonalize": iterations,
        "orthogonalize gram": iterations,
        "add_and_restore_norm": 6.0 * b * d * f,
        "linear_state": 2.0 * b * n * d * d,
        "silu_unit": 8.0 * b * n * d,
        "silu_unit, backward": 24.0 * b * n * d,
        "rms_norm": 5.0 * b * n * d,
        "rms_norm, backward": 16.0 * b * n * d,
        "embed_rays": 2.0 * b * n * d * 768,
        "embed_rays, backward": 4.0 * b * n * d * 768,
    }[operator]


@dataclass(frozen=True)
class Job:
    """An operator with its arguments; with `upstream` gradients for all of them are computed, too."""

    function: Callable[..., Any]
    arguments: tuple[Tensor, ...]
    upstream: Any = None

    def prepare(self, compiled: bool = False) -> Callable[[], Any]:
        """A call without arguments that does the work."""
        function = torch.compile(self.function, dynamic=False) if compiled else self.function
        if self.upstream is None:
            return lambda: function(*self.arguments)
        leaves = [x.detach().clone().requires_grad_() for x in self.arguments]
        return lambda: torch.autograd.grad(function(*leaves), leaves, self.upstream)


def jobs(b: int, n: int, d: int, f: int, device: str, dtype: torch.dtype) -> dict[str, Job]:
    """What is timed, by operator; "backward" is forward and backward together."""
    w0, w2 = (torch.randn(b, d, f, device=device, dtype=dtype) * d**-0.5 for _ in range(2))
    w1 = torch.randn(b, f, d, device=device, dtype=dtype) * f**-0.5
    k, v = (torch.randn(b, n, d, device=device, dtype=dtype) for _ in range(2))
    lr0, lr1, lr2 = (torch.rand(b, n, 1, device=device) * 0.01 for _ in range(3))
    everything = (w0, w1, w2, k, v, lr0, lr1, lr2)
    gain = torch.ones(d, device=device, dtype=dtype)
    projection = torch.randn(d, 768, device=device, dtype=dtype) * 0.02
    # One wide picture of all tokens.
    images = torch.rand(1, 3, 8, 8 * b * n, device=device)
    c2w, intrinsics = torch.eye(4, device=device)[None], torch.tensor([[9.0, 9.0, 4.0, 4.0]], device=device)

    def embed(weight: Tensor) -> Tensor:
        return kernels.embed_rays(weight, c2w, intrinsics, images, (8, 8 * b * n), 8)

    return {
        "apply_swiglu": Job(kernels.apply_swiglu, (w0, w1, w2, k)),
        "apply_swiglu, backward": Job(kernels.apply_swiglu, (w0, w1, w2, k), v),
        "fast_weight_gradients": Job(kernels.fast_weight_gradients, everything),
        "fast_weight_gradients, backward": Job(kernels.fast_weight_gradients, everything, (w0, w1, w2)),
        "orthogonalize": Job(lambda g: kernels.orthogonalize(g, 5, dtype), (w2.float(),)),
        "orthogonalize gram": Job(lambda g: kernels.orthogonalize(g, 5, dtype, form="gram"), (w2.float(),)),
        "add_and_restore_norm": Job(kernels.add_and_restore_norm, (w0.float(), w2.float())),
        "linear_state": Job(kernels.linear_state, (k, v, lr0)),
        "silu_unit": Job(kernels.silu_unit, (k,)),
        "silu_unit, backward": Job(kernels.silu_unit, (k,), v),
        "rms_norm": Job(kernels.rms_norm, (k, gain)),
        "rms_norm, backward": Job(kernels.rms_norm, (k, gain), v),
        "embed_rays": Job(embed, (projection,)),
        "embed_rays, backward": Job(embed, (projection,), v.view(1, b * n, d)),
    }


def milliseconds(call: Callable[[], Any], device: str, runs: int = 10) -> float:
    """Median over `runs` calls after two for warming up."""
    for _ in range(2):
        call()
    times = []
    for _ in range(runs):
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def product_rate(device: str, dtype: torch.dtype, side: int = 8192) -> float:
    """Measured TFLOP/s of one large matrix product: what this machine can give."""
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return 2e-9 * side**3 / milliseconds(lambda: a @ b, device)


def measure(device: str, minutes: float) -> Iterator[Row]:
    """Time all implementations of all operators, as far as the time goes."""
    end = time.monotonic() + minutes * 60
    gpu = device == "cuda"
    dtype = torch.bfloat16 if gpu else torch.float32
    peak = product_rate(device, dtype) if gpu else None
    # Compiling takes longest: it comes when everything else is known.
    for implementations in (("plain", "triton", "triton, graph"), ("compiled",)) if gpu else (("plain",),):
        for size, b, n, d, f in GPU_SIZES if gpu else CPU_SIZES:
            for operator, job in jobs(b, n, d, f, device, dtype).items():
                for implementation in implementations:
                    if time.monotonic() > end:
                        return
                    try:
                        with kernels.use_backend("triton" if implementation.startswith("triton") else "reference"):
                            call = job.prepare(compiled=implementation == "compiled")
                            spent = milliseconds(as_graph(call) if implementation.endswith("graph") else call, device)
                    except Exception as error:  # a compiler or driver may raise anything; the other rows still count
                        reason = str(error).partition("\n")[0]
                        print(f"skipped {operator}, {implementation}, {size}: {reason}", file=sys.stderr)
                        continue
                    rate = floating_point_operations(operator, b, n, d, f) / spent / 1e9
                    share = None if peak is None else rate / peak
                    yield Row(operator, size, str(dtype).removeprefix("torch."), implementation, spent, rate, share)


def as_graph(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call recorded once as a CUDA graph: replaying it leaves out the cost of launching."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def tune(minutes: float) -> Iterator[tuple[str, launch.Tiles, float]]:
    """Time candidate tile sizes of every kernel on this GPU: (kernel, tiles, milliseconds), for the table."""
    from triton.runtime.errors import OutOfResources

    end = time.monotonic() + minutes * 60
    device = torch.device("cuda", torch.cuda.current_device())
    family = launch.family_of(device)
    users = {
        "hidden": "apply_swiglu",
        "gradient": "fast_weight_gradients",
        "second_order": "fast_weight_gradients, backward",
        "token_product": "linear_state",
        "symmetric": "orthogonalize",
        "rays": "embed_rays",
        "ray_weight": "embed_rays, backward",
    }
    calls = jobs(1, 8192, 768, 1536, "cuda", torch.bfloat16)
    for kernel, operator in users.items():
        for tiles in _neighbours(launch.TABLE[family][kernel][0], square=kernel == "symmetric"):
            if time.monotonic() > end:
                return
            try:
                with launch.only_tiles(family, kernel, tiles), kernels.use_backend("triton"):
                    spent = milliseconds(calls[operator].prepare(), "cuda")
            except OutOfResources:
                continue
            yield kernel, tiles, spent


def _neighbours(tiles: launch.Tiles, square: bool) -> Iterator[launch.Tiles]:
    for m, n in ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32)):
        for k in (32, 64):
            for warps, stages in ((4, 3), (8, 3), (8, 4)):
                if m == n or not square:
                    yield replace(tiles, m=m, n=n, k=k, warps=warps, stages=stages)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main(arguments: list[str] | None = None) -> int:
    """Print and write the table."""
    parser = argparse.ArgumentParser(prog="python -m kernels.benchmark", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--minutes", type=float, default=4.0, help="stop starting new measurements after this time")
    parser.add_argument("--tune", action="store_true", help="time tile sizes on this GPU instead")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        if options.tune:
            print("--tune needs a GPU", file=sys.stderr)
            return 2
        print(f"no GPU here: small sizes on the CPU, {torch.get_num_threads()} threads, PyTorch {torch.__version__}")
        device = "cpu"
    else:
        print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
        device = "cuda"
    if options.tune:
        for kernel, tiles, spent in tune(options.minutes):
            print(f"{kernel:14} {spent:9.3f} ms  {tiles}", flush=True)
        return 0
    rows = []
    print(f"{'operator':32}{'implementation':15}{'ms':>10}{'TFLOP/s':>10}{'share':>7}  size")
    for row in measure(device, options.minutes):
        rows.append(row)
        share = "" if row.share is None else f"{row.share:.2f}"
        print(
            f"{row.operator:32}{row.implementation:15}{row.milliseconds:10.3f}{row.tflops:10.2f}{share:>7}"
            f"  {row.size} {row.dtype}",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
