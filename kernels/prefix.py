"""States of linear attention after every chunk of tokens, all chunks in parallel.

The recurrence (the definition, `reference.linear_prefix_states`) is unrolled as in arXiv 2602.21204, appendix H: with
A_ij = momentum_(j+1) ... momentum_i, chunk i adds sum_j A_ij G_j to the state. The mask of that appendix is the matrix
product of a lower triangle of ones with A (here a cumulative sum), not their elementwise product.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def split_chunks(x: Float[Tensor, "b n d"], chunk: int) -> Float[Tensor, "b c l d"]:
    """Chunks of `chunk` tokens; the last is filled with zeros, which add nothing to a state."""
    return F.pad(x, (0, 0, 0, -x.shape[1] % chunk)).unflatten(1, (-1, chunk))


def decay(momentum: Float[Tensor, "b c"]) -> Float[Tensor, "b c c"]:
    """A_ij = momentum_(j+1) ... momentum_i, the share of chunk j's gradient in chunk i's step; zero for j > i."""
    c = momentum.shape[1]
    later = torch.ones(c, c, dtype=torch.bool, device=momentum.device).tril(-1)
    factors = torch.where(later, momentum[:, :, None], 1.0)
    return factors.cumprod(dim=1).tril()


def mix(gradients: Float[Tensor, "b c d e"], momentum: Float[Tensor, "b c"]) -> Float[Tensor, "b c d e"]:
    """Momentum-averaged gradient of every chunk."""
    return (decay(momentum).to(gradients.dtype) @ gradients.flatten(2)).view_as(gradients)
