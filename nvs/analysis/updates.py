"""What the input views change in a memory: size and rank of each matrix' update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from nvs.analysis.probe import Case, NotApplicableError, trace
from nvs.model import LaCT

LEAST_SIDE = 4
"""Biases and 3x3 convolutions have no rank worth telling."""


@dataclass(frozen=True)
class Update:
    """The update of one matrix of one block; numbers are means over scenes and heads."""

    block: int
    matrix: str
    effective_rank: float
    """exp of the entropy of the singular values as shares (Roy and Vetterli 2007): 1 to the smaller side."""
    full_rank: int
    """The smaller side of the matrix."""
    relative_norm: float | None
    """Norm of the update over that of the initial matrix; None where that is 0."""
    singular_values: tuple[float, ...]
    """Largest first."""


@torch.no_grad()
def memory_updates(model: LaCT, cases: Sequence[Case]) -> list[Update]:
    """Look at what encoding changes in every matrix of every block's state; a momentum is none."""
    traces = []
    for case in cases:
        inputs, targets = case.views(model)
        traces.append(trace(model, inputs, targets.cameras.select(0)))
    found = []
    for index in range(len(traces[0])):
        before, after = traces[0][index].before, traces[0][index].after
        names = [name for name, x in after._asdict().items() if x.dim() == 4 and name[0] != "m"]
        if any(getattr(before, name).shape != getattr(after, name).shape for name in names):
            kind = model.config.memory.kind
            raise NotApplicableError(f"The memory layer {kind} keeps every token: its state grows and has no update.")
        wide = [name for name in names if min(getattr(after, name).shape[-2:]) >= LEAST_SIDE]
        found += [_update(index, name, [t[index] for t in traces]) for name in wide]
    if not found:
        raise NotApplicableError(f"The memory layer {model.config.memory.kind} has no matrix in its state.")
    return found


def effective_rank(singular_values: Float[Tensor, "... n"]) -> Tensor:
    """exp of the entropy of the singular values as shares of their sum (Roy and Vetterli 2007); 0 for a zero matrix."""
    total = singular_values.sum(-1, keepdim=True)
    shares = singular_values / total.clamp(min=torch.finfo(singular_values.dtype).tiny)
    entropy = -torch.special.xlogy(shares, shares).sum(-1)
    return torch.where(total[..., 0] > 0, entropy.exp(), 0.0)


def _update(index: int, name: str, traces: list) -> Update:
    before = torch.cat([getattr(t.before, name) for t in traces]).flatten(0, 1).double()
    after = torch.cat([getattr(t.after, name) for t in traces]).flatten(0, 1).double()
    values = torch.linalg.svdvals(after - before)
    sizes, initial = (after - before).flatten(1).norm(dim=1), before.flatten(1).norm(dim=1)
    relative = (sizes / initial).mean().item() if bool((initial > 0).all()) else None
    return Update(
        block=index,
        matrix=name,
        effective_rank=effective_rank(values).mean().item(),
        full_rank=min(after.shape[-2:]),
        relative_norm=relative,
        singular_values=tuple(values.mean(0).tolist()),
    )
