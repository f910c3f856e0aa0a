"""`nvs bench memory`: speed of the memory layers, one chunk of tokens after the other and all chunks at once."""

from __future__ import annotations

import statistics
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from nvs.memory import LaCTConfig

MIN_RUNS = 3
"""With fewer, a single disturbed round decides the ratios."""
Seconds = dict[tuple[str, str], list[float]]
"""Seconds of every run, by variant and form."""


def bench_memory(
    dim: int = 64,
    head_dim: int = 64,
    expansion: int = 2,
    chunks: int = 64,
    chunk_tokens: int = 64,
    train: bool = True,
    runs: int = 7,
    threads: int | None = None,
) -> None:
    """Time LaCT and its variants v1 to v6 on the CPU: each chunk of tokens is absorbed, then read.

    Printed are tokens per second of one layer with its projections, in the recurrent form and (v2 to v6) in the
    parallel one, and the training step of configs/tiny_cpu.yaml with lact and with v2: medians of interleaved runs.
    The default is one head as wide as those of configs/tiny_cpu.yaml.

      nvs bench memory --chunks 256

    Args:
        dim: token width of the layer.
        head_dim: width of one fast-weight head; dim must be a multiple.
        expansion: hidden width of the fast weights of lact, v1 and v2 over their head width.
        chunks: chunks of tokens, one after the other.
        chunk_tokens: tokens of a chunk.
        train: whether to time the training step, too.
        runs: timed rounds, 3 or more; each round runs every variant and form once.
        threads: CPU threads to use (default: what PyTorch chooses).
    """
    import torch
    from rich.console import Console

    from data import UserError

    counts = {"--chunks": chunks, "--chunk-tokens": chunk_tokens, "--runs": runs, "--threads": threads}
    for option, number in counts.items():
        if number is not None and number < 1:
            raise UserError(f"{option} {number} is not possible: give 1 or more.")
    if runs < MIN_RUNS:
        raise UserError(f"--runs {runs} is too few: medians over {MIN_RUNS} rounds or more can be compared.")
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        seconds = _time_layers(dim, _configs(head_dim, expansion), chunks, chunk_tokens, runs)
    except ValueError as error:
        raise UserError(f"This layer cannot be built: {error}. Change --dim, --head-dim or --expansion.") from error
    console = Console(width=None if sys.stdout.isatty() else 120)
    about = f"{chunks} chunks of {chunk_tokens} tokens, width {dim}, heads of {head_dim}"
    console.print(f"{about}, {torch.get_num_threads()} CPU threads, {runs} interleaved runs")
    console.print(_table(seconds, chunks * chunk_tokens))
    ratio = statistics.median(seconds["lact", "recurrent"]) / statistics.median(seconds["v6", "parallel"])
    console.print(f"v6 in parallel: {ratio:.1f} times the throughput of recurrent lact")
    if train:
        baseline, shorter = _time_training(runs)
        told = f"lact {1000 * baseline:.0f} ms, v2 {1000 * shorter:.0f} ms, {shorter / baseline:.2f} of it"
        console.print(f"training step of configs/tiny_cpu.yaml (4 scenes, 6 input and 4 target views): {told}")


def _configs(head_dim: int, expansion: int) -> dict[tuple[str, str], LaCTConfig]:
    """Settings by variant and form."""
    from nvs.memory import VARIANTS, variant

    configs = {}
    for name, settings in VARIANTS.items():
        width = {} if "expansion" in settings else {"expansion": expansion}
        configs[name, "recurrent"] = variant(name, head_dim=head_dim, **width)
        if name not in ("lact", "v1"):
            configs[name, "parallel"] = variant(name, head_dim=head_dim, form="parallel", **width)
    return configs


def _time_layers(
    dim: int, configs: dict[tuple[str, str], LaCTConfig], chunks: int, chunk_tokens: int, runs: int
) -> Seconds:
    import torch

    from nvs.memory import build_memory, scan

    torch.manual_seed(0)
    layers = {key: build_memory(dim, config) for key, config in configs.items()}
    x = torch.randn(1, chunks * chunk_tokens, dim)
    seconds: Seconds = {key: [] for key in layers}
    with torch.inference_mode():
        for round_ in range(runs + 1):
            for key, layer in layers.items():
                state = layer.init_state(1)
                begun = time.perf_counter()
                scan(layer, state, x, chunk_tokens)
                if round_:  # the first round warms up
                    seconds[key].append(time.perf_counter() - begun)
    return seconds


def _table(seconds: Seconds, tokens: int) -> Table:
    from rich.table import Table

    table = Table("variant", "recurrent, tokens/s", "parallel, tokens/s", "parallel / recurrent")
    speeds = {key: tokens / statistics.median(taken) for key, taken in seconds.items()}
    for name in dict.fromkeys(name for name, _ in speeds):
        recurrent, parallel = speeds[name, "recurrent"], speeds.get((name, "parallel"))
        cells = ("", "") if parallel is None else (f"{parallel:,.0f}", f"{parallel / recurrent:.2f}")
        table.add_row(name, f"{recurrent:,.0f}", *cells)
    return table


def _time_training(runs: int) -> tuple[float, float]:
    """Seconds of a training step with lact and with v2."""
    from dataclasses import replace

    import torch

    from apps.bench_model import tiny_cpu
    from data import Views
    from nvs import LaCT, trajectory
    from nvs.ablation_timing import measure_speeds
    from nvs.memory import variant
    from nvs.training_config import TrainingConfig

    size, scenes = tiny_cpu(), 4
    memories = {name: variant(name, head_dim=size.memory.head_dim) for name in ("lact", "v2")}
    models = {name: LaCT(replace(size, memory=memory)) for name, memory in memories.items()}
    cameras = [trajectory.orbit(None, count, radius=2.7, elevation=20.0, image_size=(64, 64)) for count in (6, 4)]
    inputs, targets = (Views(c.c2w, c.intrinsics, (64, 64), torch.rand(c.num_views, 3, 64, 64)) for c in cameras)
    training = TrainingConfig(optimizer="muon", precision="bf16-mixed")
    speeds = measure_speeds(models, [(inputs, targets)] * scenes, training, runs)
    return scenes / speeds["lact"].samples_per_second, scenes / speeds["v2"].samples_per_second
