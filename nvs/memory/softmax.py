"""Softmax attention over all input tokens: a memory that grows with the input, as the yardstick for those that do not.

The state is the keys and values themselves, as in the decoder-only LVSM (arXiv 2410.17242). Names and shapes of the
projections are those of `LaCTMemory`, so that a network trained with one can go on with the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from nvs.memory.base import Grid, MemoryConfig


@dataclass(frozen=True)
class SoftmaxConfig(MemoryConfig):
    """Settings of softmax attention in place of a memory of fixed size."""

    kind: Literal["softmax"] = "softmax"
    """Which memory layer this is."""
    head_dim: int = 64
    """Width of one attention head; the model's width must be a multiple."""


class SoftmaxState(NamedTuple):
    """Keys and values of every token absorbed so far."""

    keys: Float[Tensor, "b h n d"]
    values: Float[Tensor, "b h n d"]


class SoftmaxMemory(nn.Module):
    """Keeps every input token and reads them by softmax attention; state and cost grow with the number of tokens."""

    order_matters = False
    whole_views = False

    def __init__(self, dim: int, config: SoftmaxConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.heads = config.heads(dim)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim)
        self.k_norm = nn.RMSNorm(config.head_dim)
        self.out = nn.Linear(dim, dim, bias=False)

    def init_state(self, batch: int) -> SoftmaxState:
        """No token."""
        nothing = self.q_norm.weight.new_zeros(batch, self.heads, 0, self.head_dim)
        return SoftmaxState(nothing, nothing)

    def update_state(
        self, state: SoftmaxState, x: Float[Tensor, "b n d"], slice_tokens: int | None = None, grid: Grid | None = None
    ) -> SoftmaxState:
        """Add the keys and values of these tokens."""
        keys, values = [state.keys], [state.values]
        for part in x.split(slice_tokens or max(x.shape[1], 1), dim=1):
            k, v = rearrange(self.key_value(part), "b n (r h d) -> r b h n d", r=2, h=self.heads)
            keys.append(self.k_norm(k.to(state.keys.dtype)))
            values.append(v.to(state.values.dtype))
        return SoftmaxState(torch.cat(keys, dim=2), torch.cat(values, dim=2))

    def apply_state(
        self, state: SoftmaxState, x: Float[Tensor, "b n d"], grid: Grid | None = None
    ) -> Float[Tensor, "b n d"]:
        """Attend to all tokens kept; before the first there is nothing to read, and the answer is 0."""
        q = rearrange(self.query(x), "b n (h d) -> b h n d", h=self.heads)
        wide = self.q_norm(q.to(self.q_norm.weight.dtype))
        keys, values = state.keys.to(q.dtype), state.values.to(q.dtype)
        if keys.shape[2] == 0:
            read = torch.zeros_like(q)
        else:
            read = F.scaled_dot_product_attention(wide.to(q.dtype), keys, values)
        return self.out(rearrange(read, "b h n d -> b n (h d)"))
