"""`nvs bench`: speed of this machine on the model, against a plain version of the same model."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from data import Views
    from nvs import LaCT


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

    from data import UserError
    from nvs.tokens import check_patches

    for option, number in {"--runs": runs, "--inputs": inputs, "--threads": threads}.items():
        if number is not None and number < 1:
            raise UserError(f"{option} {number} is not possible: give 1 or more.")
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = _random_model(dim, layers, expansion) if checkpoint is None else _load(checkpoint)
    check_patches(image_size, model.config.patch_size)
    with torch.inference_mode():
        times = _interleave(_jobs(model, _random_views(inputs, image_size)), runs)
    h, w = image_size
    console = Console()
    console.print(f"{inputs} input views of {h}x{w}, {torch.get_num_threads()} CPU threads, {runs} interleaved runs")
    console.print(_table(times))


def _random_model(dim: int, layers: int, expansion: int) -> LaCT:
    from data import UserError
    from nvs import LaCT, ModelConfig
    from nvs.memory import LaCTConfig

    try:
        config = ModelConfig(dim=dim, layers=layers, memory=LaCTConfig(head_dim=dim, expansion=expansion))
    except ValueError as error:
        raise UserError(f"This model cannot be built: {error}. Change --dim, --layers or --expansion.") from error
    return LaCT(config).eval().requires_grad_(False)


def _load(checkpoint: str) -> LaCT:
    from data import UserError
    from nvs import load_model
    from nvs.yardstick import Yardstick

    model = load_model(checkpoint)
    try:
        Yardstick(model)
    except ValueError as error:
        raise UserError(f"{checkpoint} cannot be timed: {error}. Leave --checkpoint out for random weights.") from error
    return model


def _jobs(model: LaCT, views: Views) -> dict[str, Callable]:
    """What is timed, under the name it is told with; plain versions are the measure for the others."""
    import torch

    from nvs.yardstick import Yardstick

    def in_bf16(call: Callable) -> Callable:
        def run():
            with torch.autocast("cpu", torch.bfloat16):
                return call()

        return run

    plain, target = Yardstick(model), views.cameras.select(0)
    state, plain_state = model.encode(views), plain.encode(views)
    return {
        "encode, plain fp32": lambda: plain.encode(views),
        "encode, fp32": lambda: model.encode(views),
        "encode, bf16": in_bf16(lambda: model.encode(views)),
        "render, plain fp32": lambda: plain.render(plain_state, target),
        "render, fp32": lambda: model.render(state, target),
        "render, bf16": in_bf16(lambda: model.render(state, target)),
    }


def _table(times: dict[str, list[float]]) -> Table:
    from rich.table import Table

    table = Table("job", "median s", "min s", "of plain fp32")
    for name, seconds in times.items():
        base = times[f"{name.split(',')[0]}, plain fp32"]
        ratio = statistics.median(seconds) / statistics.median(base)
        table.add_row(name, f"{statistics.median(seconds):.3f}", f"{min(seconds):.3f}", f"{ratio:.2f}")
    return table


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
