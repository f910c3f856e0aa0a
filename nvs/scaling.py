"""How cost grows with the number of input views: encoding, rendering and the size of the state."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from data import Views, write_atomic
from nvs import trajectory
from nvs.memory import LaCTConfig, LinearConfig, MemoryConfig, SoftmaxConfig
from nvs.model import LaCT, ModelConfig
from nvs.plots import COLORS, GRID, INK, figure

T = TypeVar("T")


@dataclass(frozen=True)
class Point:
    """What one memory costs at one number of input views; times are medians."""

    memory: str
    views: int
    encode_ms: float
    render_ms: float
    """One view, from the state."""
    state_mib: float


QUANTITIES = {"encode_ms": "encode, ms", "render_ms": "render one view, ms", "state_mib": "state, MiB"}
"""What is told of each point, with its unit."""


def memories(dim: int) -> dict[str, MemoryConfig]:
    """The memories that are compared, by the name they are told with."""
    narrow = min(dim, 64)
    return {
        "full attention": SoftmaxConfig(head_dim=narrow),
        "LaCT": LaCTConfig(head_dim=dim),
        "linear attention": LinearConfig(head_dim=narrow),
    }


def random_models(dim: int, layers: int, device: str = "cpu") -> dict[str, LaCT]:
    """Models of random weights that differ in their memory alone; raises ValueError if they cannot be built."""
    torch.manual_seed(0)
    configs = {
        name: ModelConfig(dim=dim, layers=layers, attention_head_dim=min(dim, 64), memory=memory)
        for name, memory in memories(dim).items()
    }
    return {name: LaCT(config).to(device).eval().requires_grad_(False) for name, config in configs.items()}


def measure(
    models: Mapping[str, LaCT], counts: Sequence[int], image_size: tuple[int, int], runs: int
) -> Iterator[list[Point]]:
    """Points for all models and numbers of input views, after each of `runs` rounds and a first that warms up.

    A round takes everything once, so that a machine that gets slower or faster meanwhile does so for all.
    """
    device = next(iter(models.values())).embed.weight.device
    cameras = trajectory.orbit(None, max(counts) + 1, radius=2.7, elevation=20.0, image_size=image_size).to(device)
    pixels = torch.rand(max(counts), 3, *image_size, device=device)
    target = cameras.select(max(counts))
    seconds: dict[tuple[str, int], list[tuple[float, float]]] = {}
    sizes: dict[str, dict[int, float]] = {name: {} for name in models}
    for round_ in range(runs + 1):
        for count in counts:
            chosen = cameras.select(slice(0, count))
            views = Views(chosen.c2w, chosen.intrinsics, image_size, pixels[:count])
            for name, model in models.items():
                with torch.inference_mode():
                    encode, state = _timed(lambda model=model, views=views: model.encode(views), device)
                    render, _ = _timed(lambda model=model, state=state: model.render(state, target), device)
                sizes[name][count] = state.num_bytes / 2**20
                if round_:
                    seconds.setdefault((name, count), []).append((encode, render))
        yield [_point(name, count, each, sizes[name][count]) for (name, count), each in seconds.items()]


def growth(points: Sequence[Point], memory: str, quantity: str) -> float:
    """Exponent p of cost ~ views^p from half the largest number of views to the largest: 0 flat, 1 linear, 2 square."""
    ours = sorted((p for p in points if p.memory == memory), key=lambda p: p.views)
    last = ours[-1]
    first = max((p for p in ours[:-1] if p.views * 2 <= last.views), key=lambda p: p.views, default=ours[0])
    if first.views == last.views:
        return math.nan
    return math.log(getattr(last, quantity) / getattr(first, quantity)) / math.log(last.views / first.views)


def draw(points: Sequence[Point], title: str, path: Path) -> None:
    """Draw the three quantities against the number of input views as PNG."""
    drawn, axes = figure((11.0, 3.4), columns=(1.0, 1.0, 1.0))
    names = list(dict.fromkeys(p.memory for p in points))
    for (quantity, label), plot in zip(QUANTITIES.items(), axes, strict=True):
        for name, color in zip(names, COLORS, strict=False):
            ours = [p for p in points if p.memory == name]
            known = f"{name} (views^{growth(points, name, quantity):.1f})"
            values = [getattr(p, quantity) for p in ours]
            plot.plot([p.views for p in ours], values, "o-", color=color, markersize=4, label=known)
        plot.set_xscale("log", base=2)
        if quantity == "render_ms":  # flat lines are seen best above zero
            plot.set_ylim(bottom=0)
        else:
            plot.set_yscale("log", base=2)
            plot.yaxis.set_major_formatter("{x:g}")
            plot.yaxis.set_minor_formatter("")
        counts = sorted({p.views for p in points})
        plot.set_xticks(counts, [str(count) for count in counts])
        plot.set_xlabel("input views", color=INK)
        plot.set_title(label, color=INK)
        plot.grid(color=GRID, linewidth=0.8)
        plot.legend(fontsize=8, frameon=False)
    drawn.suptitle(title, x=0.01, ha="left", fontsize=10, color=INK)
    with write_atomic(path) as temporary:
        drawn.savefig(temporary, format="png", dpi=120)


def _point(memory: str, views: int, seconds: list[tuple[float, float]], size: float) -> Point:
    encode, render = (1000 * statistics.median(taken) for taken in zip(*seconds, strict=True))
    return Point(memory, views, encode, render, size)


def _timed(call: Callable[[], T], device: torch.device) -> tuple[float, T]:
    _wait(device)
    start = time.perf_counter()
    result = call()
    _wait(device)
    return time.perf_counter() - start, result


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
