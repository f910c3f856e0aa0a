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

from nvs.memory.base import Grid, MemoryConfig, known_rays, split_tokens
from nvs.memory.frames import ask_world, to_ray, to_world
from nvs.memory.linear_map import LinearMap


@dataclass(frozen=True)
class SoftmaxConfig(MemoryConfig):
    """Settings of softmax attention in place of a memory of fixed size."""

    kind: Literal["softmax"] = "softmax"
    """Which memory layer this is."""
    head_dim: int = 64
    """Width of one attention head; the model's width must be a multiple."""
    ray_frames: bool = False
    """Whether tokens write, ask and read in the frame of their ray; heads are then a multiple of 4 wide."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        super().__post_init__()
        self.check_ray_frames()


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
        self.config = config
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
        for part, place in split_tokens(x, slice_tokens or max(x.shape[1], 1), grid):
            k, v = self._written(part, place)
            keys.append(k.to(state.keys.dtype))
            values.append(v.to(state.values.dtype))
        return SoftmaxState(torch.cat(keys, dim=2), torch.cat(values, dim=2))

    def apply_state(
        self, state: SoftmaxState, x: Float[Tensor, "b n d"], grid: Grid | None = None
    ) -> Float[Tensor, "b n d"]:
        """Attend to all tokens kept; before the first there is nothing to read, and the answer is 0."""
        q = self._queries(x, grid)
        keys, values = state.keys.to(q.dtype), state.values.to(q.dtype)
        read = torch.zeros_like(q) if keys.shape[2] == 0 else F.scaled_dot_product_attention(q, keys, values)
        return self.read_out(read, grid)

    def queries_keys_values(
        self, x: Float[Tensor, "b n d"], grid: Grid | None = None
    ) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n e"], Float[Tensor, "b h n e"]]:
        """What each token reads with, is found by, and writes."""
        return self._queries(x, grid), *self._written(x, grid)

    def read_map(
        self,
        state: SoftmaxState,
        x_in: Float[Tensor, "b n d"],
        x_out: Float[Tensor, "b m d"],
        grid_in: Grid | None = None,
        grid_out: Grid | None = None,
    ) -> LinearMap:
        """How x_out reads what x_in writes beside what `state` holds: the weights of attention are the scores."""
        q, (k, v), earlier = self._queries(x_out, grid_out), self._written(x_in, grid_in), state.keys.shape[2]
        scores = q @ torch.cat([state.keys.to(k.dtype), k], dim=2).transpose(2, 3) * self.head_dim**-0.5
        before, now = scores.softmax(-1).tensor_split([earlier], dim=-1)
        return LinearMap(before @ state.values.to(v.dtype), now, v)

    def read_out(self, read: Float[Tensor, "b h n d"], grid: Grid | None = None) -> Float[Tensor, "b n hd"]:
        """The layer's answer from what was read."""
        if self.config.ray_frames:
            read = to_ray(known_rays(grid), read.flatten(0, 1)).view_as(read)
        return self.out(rearrange(read, "b h n d -> b n (h d)"))

    def _queries(self, x: Tensor, grid: Grid | None) -> Tensor:
        projected = self.query(x)
        q = rearrange(projected, "b n (h d) -> b h n d", h=self.heads)
        q = self.q_norm(q.to(self.q_norm.weight.dtype))
        if self.config.ray_frames:
            q = ask_world(known_rays(grid), q.flatten(0, 1)).view_as(q)
        return q.to(projected.dtype)

    def _written(self, x: Tensor, grid: Grid | None) -> tuple[Tensor, Tensor]:
        k, v = rearrange(self.key_value(x), "b n (r h d) -> r b h n d", r=2, h=self.heads)
        k = self.k_norm(k.to(self.k_norm.weight.dtype))
        if self.config.ray_frames:
            frames = known_rays(grid)
            k, v = (to_world(frames, y.flatten(0, 1)).view_as(y) for y in (k, v))
        return k, v
