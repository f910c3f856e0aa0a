"""Whether queries live where keys live: a memory that looks things up would need that, linear attention does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nvs.analysis.probe import Case, memories, trace
from nvs.model import LaCT

MOST_POINTS = 512


@dataclass(frozen=True)
class Overlap:
    """How far queries and keys of one block lie apart; all are of the same tokens, those of the input views."""

    block: int
    mmd: float
    """Maximum mean discrepancy between queries and keys, 0 for equal distributions."""
    mmd_targets: float
    """The same between queries of the target views and keys of the input views."""
    mmd_within: float
    """The same between two halves of the keys: what chance makes of equal distributions."""
    cosine_same: float
    """Mean cosine between the query and the key of a token."""
    cosine_all: float
    """Mean cosine between any query and any key."""
    queries: list[tuple[float, float]]
    """Queries on the plane of the two main directions of both."""
    keys: list[tuple[float, float]]


@torch.no_grad()
def query_key_overlap(model: LaCT, cases: Sequence[Case]) -> list[Overlap]:
    """Compare queries and keys in every block, of all heads and scenes together."""
    layers = memories(model, "queries_keys_values", "does not tell its queries and keys")
    parts: list[list[tuple[Tensor, Tensor, Tensor]]] = [[] for _ in layers]
    for case in cases:
        inputs, targets = case.views(model)
        for layer, seen, found in zip(layers, trace(model, inputs, targets.cameras), parts, strict=True):
            q, k, _ = layer.queries_keys_values(seen.written, seen.written_grid)
            wanted, _, _ = layer.queries_keys_values(seen.read, seen.read_grid)
            found.append((q.flatten(0, 2), k.flatten(0, 2), wanted.flatten(0, 2)))
    return [_overlap(i, *(torch.cat(x) for x in zip(*found, strict=True))) for i, found in enumerate(parts)]


def mmd(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"]) -> float:
    """Maximum mean discrepancy of two samples: sqrt of the unbiased estimate of Gretton et al. 2012, at least 0.

    The kernel is Gaussian; its width is the median distance of all points.
    """
    both = torch.cat([x, y]).double()
    distances = torch.cdist(both, both)
    n, m = len(x), len(y)
    width = distances[distances > 0].median() if (distances > 0).any() else distances.new_ones(())
    kernel = torch.exp(-distances.square() / (2 * width.square()))
    within_x = (kernel[:n, :n].sum() - n) / (n * (n - 1))
    within_y = (kernel[n:, n:].sum() - m) / (m * (m - 1))
    return (within_x + within_y - 2 * kernel[:n, n:].mean()).clamp(min=0).sqrt().item()


def project(*samples: Float[Tensor, "_ d"]) -> list[Float[Tensor, "_ 2"]]:
    """Samples on the plane of the two main directions of all of them together (principal components)."""
    both = torch.cat(samples).double()
    _, _, directions = torch.linalg.svd(both - both.mean(0), full_matrices=False)
    # Directions have no sign of their own: the largest entry is made positive.
    largest = directions[:2].gather(1, directions[:2].abs().argmax(1, keepdim=True))
    plane = (directions[:2] * largest.sign()).T
    return [(x.double() - both.mean(0)) @ plane for x in samples]


def _overlap(index: int, q: Tensor, k: Tensor, wanted: Tensor) -> Overlap:
    generator = torch.Generator().manual_seed(0)
    some = torch.randperm(len(q), generator=generator)[:MOST_POINTS]
    others = torch.randperm(len(wanted), generator=generator)[:MOST_POINTS]
    q, k, wanted = q[some].cpu(), k[some].cpu(), wanted[others].cpu()
    unit_q, unit_k = torch.nn.functional.normalize(q, dim=-1), torch.nn.functional.normalize(k, dim=-1)
    flat_q, flat_k = project(q, k)
    half = len(k) // 2
    return Overlap(
        block=index,
        mmd=mmd(q, k),
        mmd_targets=mmd(wanted, k),
        mmd_within=mmd(k[:half], k[half:]),
        cosine_same=(unit_q * unit_k).sum(-1).mean().item(),
        cosine_all=(unit_q @ unit_k.T).mean().item(),
        queries=[(round(x, 5), round(y, 5)) for x, y in flat_q.tolist()],
        keys=[(round(x, 5), round(y, 5)) for x, y in flat_k.tolist()],
    )
