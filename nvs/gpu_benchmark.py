"""Speed of the published models on a GPU: encoding, rendering and a training step, on Triton and on plain PyTorch.

`python -m nvs.gpu_benchmark --out DIR [--minutes M]` writes DIR/model.json after every measurement and prints the same:
median milliseconds, TFLOP/s, share of the rate of a large matrix product in the same run, peak memory. Weights are
random, products run in bfloat16. Before the times it says how far Triton's pictures are from those of plain PyTorch in
float32. Without a GPU a tiny model runs, to try the program out. `python -m kernels.gpu_check` runs it last.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kernels
from data import Views
from kernels import benchmark
from nvs import trajectory
from nvs.memory import LaCTConfig
from nvs.model import LaCT, ModelConfig


@dataclass(frozen=True)
class Size:
    """A published model at work."""

    name: str
    model: ModelConfig
    image_size: tuple[int, int]
    inputs: int
    targets: int
    """Views that a training step renders."""
    recompute: bool
    """Whether a training step computes blocks again in the backward pass."""


def _published(expansion: int) -> ModelConfig:
    return ModelConfig(memory=LaCTConfig(expansion=expansion))


_TINY_MEMORY = LaCTConfig(head_dim=16, newton_schulz_steps=2, newton_schulz_dtype="float32")
_TINY = ModelConfig(dim=16, layers=1, attention_head_dim=16, memory=_TINY_MEMORY)


GPU_SIZES = (
    Size("l24_d768_ttt2x, 8 views of 256x256", _published(2), (256, 256), 8, 8, recompute=False),
    Size("l24_d768_ttt4x, 32 views of 536x960", _published(4), (536, 960), 32, 4, recompute=True),
)
TINY_SIZES = (Size("tiny, 2 views of 16x16", _TINY, (16, 16), 2, 2, recompute=True),)

PLAIN, TRITON, GRAPH, COMPILED, BOTH = "plain", "triton", "triton, graph", "compiled", "triton, compiled"


@dataclass(frozen=True)
class Row:
    """One job of one model with one implementation."""

    size: str
    job: str
    implementation: str
    milliseconds: float
    tflops: float
    share: float | None
    """Of the measured matrix-product rate; None on a CPU."""
    peak_gib: float | None
    """Most memory in use on the GPU while it ran."""


class Bench:
    """A model of one size with its inputs, and what can be timed about it."""

    def __init__(self, size: Size, device: str) -> None:
        torch.manual_seed(0)
        self.size, self.device = size, device
        self.plain = LaCT(size.model).to(device).eval().requires_grad_(False)
        if device == "cuda":  # Triton's interpreter knows float32 only
            self.plain.use_precision("bf16")
        cameras = trajectory.orbit(None, size.inputs + 8, radius=2.7, elevation=20.0, image_size=size.image_size)
        self.cameras = cameras.to(device).add_batch()
        chosen = self.cameras.select(slice(0, size.inputs))
        pixels = torch.rand(1, size.inputs, 3, *size.image_size, device=device)
        self.views = Views(chosen.c2w, chosen.intrinsics, size.image_size, pixels)
        self.compiled: LaCT | None = None

    def call(self, job: str, implementation: str) -> Callable[[], Any]:
        """A call without arguments that does the job once."""
        compiled = implementation in (COMPILED, BOTH)
        if job == "training step":
            return self._training_step(compiled)
        model = self._compiled() if compiled else self.plain
        if job == "encode":
            return lambda: model.encode(self.views)
        state = model.encode(self.views).to(torch.bfloat16 if self.device == "cuda" else torch.float32)
        cameras = self.cameras.select(slice(self.size.inputs, self.size.inputs + (1 if job == "render 1" else 8)))
        return lambda: model.render(state, cameras)

    def operations(self, job: str) -> float:
        """Floating-point operations that the mathematics asks for (a multiply-add is two)."""
        c, (h, w) = self.size.model, self.size.image_size
        memory = c.memory
        assert isinstance(memory, LaCTConfig)
        d, r, t = c.dim, memory.expansion, h * w // c.patch_size**2
        iterations = 3 * memory.newton_schulz_steps * (4 * r + 2) * d**3
        encode = c.layers * (self.size.inputs * t * ((32 + 18 * r) * d**2 + 4 * t * d) + iterations)
        encode -= self.size.inputs * t * (20 + 6 * r) * d**2  # no one reads the input tokens after the last update
        render = c.layers * t * ((28 + 6 * r) * d**2 + 4 * t * d)
        jobs = {"encode": encode, "render 1": render, "render 8": 8 * render}
        return jobs.get(job) or 3 * (encode + self.size.targets * render)

    def picture_errors(self) -> dict[str, float]:
        """Relative distance of one rendered view from the one of plain PyTorch in float32, for plain and Triton."""
        memory = replace(self.size.model.memory, newton_schulz_dtype="float32")
        exact = _share(self.plain, replace(self.size.model, memory=memory)).float()
        pictures: dict[str, Tensor] = {}
        for name, model in (("float32", exact), (PLAIN, self.plain), (TRITON, self.plain)):
            with torch.inference_mode(), _backend(name):
                pictures[name] = model.render(model.encode(self.views), self.cameras.select(self.size.inputs)).float()
        truth = pictures.pop("float32")
        return {name: ((p - truth).norm() / (truth - truth.mean()).norm()).item() for name, p in pictures.items()}

    def _compiled(self) -> LaCT:
        if self.compiled is None:
            self.compiled = _share(self.plain, self.size.model)
            self.compiled.use_precision(self.plain.precision)
            self.compiled.compile_blocks()
        return self.compiled

    def _training_step(self, compiled: bool) -> Callable[[], Any]:
        model = LaCT(self.size.model).to(self.device)
        model.activation_checkpointing = self.size.recompute
        if compiled:
            model.compile_blocks()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=self.device == "cuda")
        targets = self.cameras.select(slice(self.size.inputs, self.size.inputs + self.size.targets))
        photos = torch.rand(1, self.size.targets, 3, *self.size.image_size, device=self.device)

        def step() -> None:
            optimizer.zero_grad()
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                loss = (model(self.views, targets).float() - photos).square().mean()
            loss.backward()
            optimizer.step()

        return step


def measure(device: str, minutes: float) -> Iterator[dict[str, Any]]:
    """Picture errors and rows, the most telling first, as far as the time goes."""
    end = time.monotonic() + minutes * 60
    peak = benchmark.product_rate(device, torch.bfloat16) if device == "cuda" else None
    sizes = GPU_SIZES if device == "cuda" else TINY_SIZES
    jobs = ("render 1", "render 8", "encode", "training step")
    # What is compiled comes last: compiling costs minutes.
    for implementations in ((PLAIN, TRITON, GRAPH), (COMPILED, BOTH)) if device == "cuda" else ((PLAIN, TRITON),):
        for size in sizes:
            bench = Bench(size, device)
            if TRITON in implementations and size is sizes[0] and _triton_here(device):
                try:
                    yield {"size": size.name, "picture_errors": bench.picture_errors()}
                except Exception as error:  # the times are wanted all the same
                    _skipped(f"picture errors, {size.name}", error)
            for job in jobs:
                for implementation in implementations:
                    if time.monotonic() > end:
                        return
                    if implementation == GRAPH and job == "training step":
                        continue
                    row = _time(bench, job, implementation, peak)
                    if row is not None:
                        yield asdict(row)
            del bench


def _time(bench: Bench, job: str, implementation: str, peak: float | None) -> Row | None:
    device, gpu = bench.device, bench.device == "cuda"
    if implementation == TRITON and not _triton_here(device):
        return None
    learning = job == "training step"
    try:
        with _backend(implementation), nullcontext() if learning else torch.no_grad():
            call = bench.call(job, implementation)
            call = benchmark.as_graph(call) if implementation == GRAPH else call
            if gpu:
                torch.cuda.reset_peak_memory_stats()
            spent = benchmark.milliseconds(call, device, runs=_runs(bench.operations(job), gpu))
    except Exception as error:  # a compiler or driver may raise anything; the other rows still count
        _skipped(f"{job}, {implementation}, {bench.size.name}", error)
        return None
    rate = bench.operations(job) / spent / 1e9
    memory = torch.cuda.max_memory_allocated() / 2**30 if gpu else None
    return Row(bench.size.name, job, implementation, spent, rate, None if peak is None else rate / peak, memory)


def _skipped(what: str, error: Exception) -> None:
    reason = str(error).partition("\n")[0] or type(error).__name__
    print(f"skipped {what}: {reason}", file=sys.stderr)


def _runs(operations: float, gpu: bool) -> int:
    if not gpu:
        return 1
    return 10 if operations < 5e13 else 3


def _backend(implementation: str) -> Any:
    return kernels.use_backend("triton" if implementation.startswith("triton") else "reference")


def _triton_here(device: str) -> bool:
    from kernels.launch import interpreting

    return device == "cuda" or interpreting()


def _share(model: LaCT, config: ModelConfig) -> LaCT:
    """A second model on the same weights, without a precision of its own."""
    with torch.device("meta"):
        twin = LaCT(config)
    twin.load_state_dict(model.state_dict(), assign=True)
    return twin.eval().requires_grad_(False)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write DIR/model.json after every result."""
    parser = argparse.ArgumentParser(prog="python -m nvs.gpu_benchmark", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for model.json")
    parser.add_argument("--minutes", type=float, default=4.0, help="stop starting new measurements after this time")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        print("no GPU here: a tiny model on the CPU, to try the program out")
    options.out.mkdir(parents=True, exist_ok=True)
    results = []
    for result in measure(device, options.minutes):
        results.append(result)
        (options.out / "model.json").write_text(json.dumps(results, indent=1))
        print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in result.values()), flush=True)
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
