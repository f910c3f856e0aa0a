"""How fast the recurrent and the parallel form of a memory layer are, against the number of chunks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from nvs.analysis.probe import OnStep
from nvs.memory import Grid, LaCTConfig, MemoryConfig, RayFrames, build_memory, variant
from nvs.memory.base import scan
from nvs.model import LaCT

REDUCED = ("v2", "v4", "v6")
"""Variants of LaCT that are timed beside the model's own layer (arXiv 2602.21204)."""
CHUNK_PATCHES = (8, 8)
CHUNK_TOKENS = 64
"""A chunk is a view of 8x8 patches."""
MOST_SECONDS = 10.0
"""A layer that takes longer than this for one pass is not timed on more chunks."""


@dataclass(frozen=True)
class ThroughputCurve:
    """Tokens per second of one layer in one form, for each number of chunks of `CHUNK_TOKENS` tokens that was timed."""

    layer: str
    form: str
    chunks: tuple[int, ...]
    tokens_per_second: tuple[float, ...]


@torch.inference_mode()
def chunk_throughput(
    model: LaCT, chunks: Sequence[int], rounds: int, on_step: OnStep = lambda done: None
) -> list[ThroughputCurve]:
    """Absorb and read chunk after chunk, one scene, random weights of the model's width; medians of turns.

    `on_step` counts the chunks of all turns, one more than `rounds`.
    """
    configs = _contenders(model.config.memory)
    generator = torch.Generator().manual_seed(0)
    layers = {name: build_memory(model.config.dim, config) for name, config in configs.items()}
    found: dict[tuple[str, str], dict[int, float]] = {name: {} for name in layers}
    done = 0
    for count in sorted(chunks):
        x = torch.randn(1, count * CHUNK_TOKENS, model.config.dim, generator=generator)
        poses = torch.eye(4).expand(*x.shape[:2], 4, 4)
        grid = Grid(*CHUNK_PATCHES, RayFrames(poses, poses))
        seconds: dict[tuple[str, str], list[float]] = {name: [] for name in layers}
        for _ in range(rounds + 1):
            for name, layer in layers.items():
                start = time.perf_counter()
                scan(layer, layer.init_state(1), x, CHUNK_TOKENS, grid)
                seconds[name].append(time.perf_counter() - start)
            done += count
            on_step(done)
        for name, taken in seconds.items():
            middle = statistics.median(taken[1:])
            found[name][count] = x.shape[1] / middle
            if middle > MOST_SECONDS:
                del layers[name]
    return [ThroughputCurve(*name, tuple(rates), tuple(rates.values())) for name, rates in found.items()]


def _contenders(own: MemoryConfig) -> dict[tuple[str, str], MemoryConfig]:
    """Layers to time, by name and form; a form that a layer does not have is left out."""
    named: dict[str, MemoryConfig] = {f"this model ({own.kind})": own}
    if isinstance(own, LaCTConfig):
        # The variants are as wide as the layer that they reduce; with a single matrix they have no hidden width.
        width = {"v2": {"expansion": own.expansion}}
        shared = {"head_dim": own.head_dim, "ray_frames": own.ray_frames}
        named |= {name: variant(name, **shared, **width.get(name, {})) for name in REDUCED}
    configs = {}
    for name, config in named.items():
        for form in ("recurrent", "parallel"):
            try:
                configs[name, form] = replace(config, form=form) if isinstance(config, LaCTConfig) else config
            except ValueError:  # this layer has no parallel form
                continue
            if not isinstance(config, LaCTConfig):
                break
    return configs
