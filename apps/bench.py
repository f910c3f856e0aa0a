"""`nvs bench`: speed of this machine on the model, against a plain version of the same model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data import Views


def bench(
    checkpoint: str | None = None,
    dim: int = 768,
    layers: int = 14,
    expansion: int = 2,
    image_size: tuple[int, int] = (256, 256),
    inputs: int = 4,
    runs: int = 5,
    threads: int | None = None,
) -> None:
    """Time encoding and rendering, interleaved with a plain un-optimised version of the same model and weights.

    Prints medians in seconds, float32 and bfloat16; the ratio compares with the plain version in float32.
    Without a checkpoint it takes random weights of the published size l14_d768_ttt2x.

      Example: nvs bench --runs 5 --threads 2

    Args:
        checkpoint: A model to time instead of random weights (published configuration only).
        dim: Token width of the random model.
        layers: Blocks of the random model.
        expansion: Hidden width of the fast weights over their head width.
        image_size: Height and width of input and rendered views, in pixels.
        inputs: Number of input views.
        runs: Timed rounds; each round runs every contender once.
        threads: CPU threads to use (default: what PyTorch chooses).
    """
    import torch
    from rich.console import Console
    from rich.table import Table

    import nvs
    from data import UserError
    from nvs.memory import LaCTConfig
    from nvs.yardstick import Yardstick

    if runs < 1 or inputs < 1:
        raise UserError("runs and inputs must be 1 or more")
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    if checkpoint is not None:
        model = nvs.load_model(Path(checkpoint))
    else:
        config = nvs.ModelConfig(dim=dim, layers=layers, memory=LaCTConfig(head_dim=dim, expansion=expansion))
        model = nvs.LaCT(config).eval().requires_grad_(False)
    views = _random_views(inputs, image_size)
    target = views.cameras.select(0)
    plain = Yardstick(model)

    def in_bf16(call: Callable) -> Callable:
        def run():
            with torch.autocast("cpu", torch.bfloat16):
                return call()

        return run

    with torch.inference_mode():
        state, plain_state = model.encode(views), plain.encode(views)
        jobs = {
            "encode, plain fp32": lambda: plain.encode(views),
            "encode, fp32": lambda: model.encode(views),
            "encode, bf16": in_bf16(lambda: model.encode(views)),
            "render, plain fp32": lambda: plain.render(plain_state, target),
            "render, fp32": lambda: model.render(state, target),
            "render, bf16": in_bf16(lambda: model.render(state, target)),
        }
        times = _interleave(jobs, runs)
    table = Table("job", "median s", "min s", "of plain fp32")
    for name, seconds in times.items():
        base = times[f"{name.split(',')[0]}, plain fp32"]
        ratio = statistics.median(seconds) / statistics.median(base)
        table.add_row(name, f"{statistics.median(seconds):.3f}", f"{min(seconds):.3f}", f"{ratio:.2f}")
    h, w = image_size
    console = Console()
    console.print(f"{inputs} input views of {h}x{w}, {torch.get_num_threads()} CPU threads, {runs} interleaved runs")
    console.print(table)


def _random_views(count: int, image_size: tuple[int, int]) -> Views:
    import torch

    import nvs
    from data import Views

    cameras = nvs.trajectory.orbit(None, count, radius=2.7, elevation=20.0, image_size=image_size)
    return Views(cameras.c2w, cameras.intrinsics, image_size, torch.rand(count, 3, *image_size)).add_batch()


def _interleave(jobs: dict[str, Callable], runs: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for call in jobs.values():
        call()
    for _ in range(runs):
        for name, call in jobs.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times
