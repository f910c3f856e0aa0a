"""Linear attention: a matrix per head that sums up keys and values, read by queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from kernels import linear_apply, linear_state
from nvs.memory.base import Grid, MemoryConfig
from nvs.memory.linear_map import LinearMap


@dataclass(frozen=True)
class LinearConfig(MemoryConfig):
    """Settings of linear attention."""

    kind: Literal["linear"] = "linear"
    """Which memory layer this is."""
    head_dim: int = 64
    """Width of one head; the model's width must be a multiple."""
    feature_map: Literal["elu", "learned"] = "elu"
    """What queries and keys go through: elu(x) + 1, or a learned map that imitates softmax attention."""


class LinearState(NamedTuple):
    """Sum over tokens of features times values, per scene and head: f d numbers, f = d (elu) or 2 d (learned)."""

    s: Float[Tensor, "b h f d"]


class LinearMemory(nn.Module):
    """Reads phi(q) sum_n phi(k_n)^T v_n, then divides by the root mean square of each head.

    The published layers divide by phi(q) sum_n phi(k_n)^T instead, a factor per head that the norm cancels; without it
    the state is one matrix and training is steadier (TransNormer, arXiv 2210.10340).
    """

    order_matters = False
    whole_views = False

    def __init__(self, dim: int, config: LinearConfig) -> None:
        super().__init__()
        self.config = config
        self.heads, d = config.heads(dim), config.head_dim
        self.features = d if config.feature_map == "elu" else 2 * d
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.q_norm = nn.RMSNorm(d, eps=1e-5)
        self.k_norm = nn.RMSNorm(d, eps=1e-5)
        if config.feature_map == "learned":
            self.q_map = nn.Parameter(torch.eye(d).repeat(self.heads, 1, 1))
            self.k_map = nn.Parameter(torch.eye(d).repeat(self.heads, 1, 1))
        else:
            self.q_map = self.k_map = None
        self.read_norm = nn.RMSNorm(d, eps=1e-5)
        self.out = nn.Linear(dim, dim, bias=False)

    def init_state(self, batch: int) -> LinearState:
        """Nothing: a sum of no token."""
        return LinearState(self.q_norm.weight.new_zeros(batch, self.heads, self.features, self.config.head_dim))

    def update_state(
        self, state: LinearState, x: Float[Tensor, "b n d"], slice_tokens: int | None = None, grid: Grid | None = None
    ) -> LinearState:
        """Add the features times values of these tokens."""
        if x.shape[1] == 0:
            return state
        s = state.s.to(self.q_norm.weight.dtype)
        for part in x.split(slice_tokens or x.shape[1], dim=1):
            k, v = self._written(part)
            s = s + linear_state(k.flatten(0, 1), v.flatten(0, 1)).view_as(s)
        return LinearState(s)

    def apply_state(
        self, state: LinearState, x: Float[Tensor, "b n d"], grid: Grid | None = None
    ) -> Float[Tensor, "b n d"]:
        """Read the sums with each token's query."""
        q = self._queries(x)
        read = linear_apply(state.s.flatten(0, 1).to(q.dtype), q.flatten(0, 1)).to(self.read_norm.weight.dtype)
        return self.out(rearrange(self.read_norm(read), "(b h) n d -> b n (h d)", h=self.heads))

    def queries_keys_values(
        self, x: Float[Tensor, "b n d"], grid: Grid | None = None
    ) -> tuple[Float[Tensor, "b h n f"], Float[Tensor, "b h n f"], Float[Tensor, "b h n e"]]:
        """The features that each token reads with and is found by, and what it writes."""
        return self._queries(x), *self._written(x)

    def read_map(
        self,
        state: LinearState,
        x_in: Float[Tensor, "b n d"],
        x_out: Float[Tensor, "b m d"],
        grid_in: Grid | None = None,
        grid_out: Grid | None = None,
    ) -> LinearMap:
        """How x_out reads what x_in writes beside what `state` holds."""
        q, (k, v) = self._queries(x_out), self._written(x_in)
        return LinearMap(q @ state.s.to(q.dtype), q @ k.transpose(2, 3), v)

    def _queries(self, x: Tensor) -> Tensor:
        return positive_features(self.q_norm(self._heads(self.query(x))), self.q_map)

    def _written(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (self._heads(y) for y in self.key_value(x).chunk(2, dim=-1))
        return positive_features(self.k_norm(k), self.k_map), v

    def _heads(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n (h d) -> b h n d", h=self.heads).to(self.q_norm.weight.dtype)


def positive_features(
    x: Float[Tensor, "b h n d"], learned: Float[Tensor, "h d d"] | None = None
) -> Float[Tensor, "b h n f"]:
    """Features whose products weigh tokens: elu(x) + 1 (arXiv 2006.16236, equation 7), or with a learned map
    softmax(x m) beside softmax(-x m) (Hedgehog, arXiv 2402.04347, section 4.1).
    """
    if learned is None:
        return F.elu(x) + 1
    y = (x @ learned).to(x.dtype)
    return torch.cat([y.softmax(-1), (-y).softmax(-1)], dim=-1)
