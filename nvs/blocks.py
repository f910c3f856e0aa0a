"""One block of the network: per-view attention, the memory layer and an MLP, each added to the tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kernels import window_attention
from nvs.layers import Linear
from nvs.memory import Grid, MemoryLayer, State, scan, split_tokens


class WindowAttention(nn.Module):
    """Self-attention among the tokens of each view, with RMS-normalised queries and keys."""

    def __init__(self, dim: int, head_dim: int) -> None:
        super().__init__()
        self.qkv = Linear(dim, 3 * dim)
        self.q_norm = nn.RMSNorm(head_dim)
        self.k_norm = nn.RMSNorm(head_dim)
        self.out = Linear(dim, dim)

    def forward(self, x: Float[Tensor, "b v t d"]) -> Float[Tensor, "b v t d"]:
        """Mix the tokens of each view."""
        mixed = window_attention(self.qkv(x).flatten(0, 1), self.q_norm.weight, self.k_norm.weight)
        return self.out(mixed.unflatten(0, x.shape[:2]))


class MLP(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, dim: int, ratio: int) -> None:
        super().__init__()
        self.up = Linear(dim, ratio * dim)
        self.down = Linear(ratio * dim, dim)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Transform each token on its own."""
        return self.down(self.up(x, then="gelu"))


class Block(nn.Module):
    """Window attention, memory and MLP as residual branches with layer norms in front."""

    def __init__(self, dim: int, head_dim: int, mlp_ratio: int, memory: MemoryLayer) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim, bias=False)
        self.attention = WindowAttention(dim, head_dim)
        self.memory_norm = nn.LayerNorm(dim, bias=False)
        self.memory = memory
        self.mlp_norm = nn.LayerNorm(dim, bias=False)
        self.mlp = MLP(dim, mlp_ratio)

    def absorb(
        self, x: Float[Tensor, "b v t d"], state: State, slice_tokens: int | None = None, grid: Grid | None = None
    ) -> tuple[Float[Tensor, "b v t d"], State]:
        """Mix within views, then absorb all tokens of all views as one chunk; `read` completes the block.

        With `slice_tokens` about that many tokens of each scene are worked on at a time (whole views in attention).
        `grid` tells where the tokens come from to those memory layers that want to know.
        """
        x = self._mix(x, slice_tokens)
        normed = self.memory_norm(x).flatten(1, 2)
        return x, self.memory.update_state(state, normed, slice_tokens, grid)

    def read(
        self, x: Float[Tensor, "b v t d"], state: State, slice_tokens: int | None = None, grid: Grid | None = None
    ) -> Float[Tensor, "b v t d"]:
        """Read the memory for every token, then apply the MLP."""
        flat = x.flatten(1, 2)
        size = slice_tokens or max(flat.shape[1], 1)
        if self.memory.whole_views:
            size = max(size // x.shape[2], 1) * x.shape[2]
        done = []
        for part, place in split_tokens(flat, size, grid):
            part = part + self.memory.apply_state(state, self.memory_norm(part), place)
            done.append(part + self.mlp(self.mlp_norm(part)))
        return _joined(done).view_as(x)

    def render(
        self, x: Float[Tensor, "b v t d"], state: State, slice_tokens: int | None = None, grid: Grid | None = None
    ) -> Float[Tensor, "b v t d"]:
        """Process tokens of views to be rendered: mix within views, read the memory, apply the MLP."""
        return self.read(self._mix(x, slice_tokens), state, slice_tokens, grid)

    def stream(
        self, x: Float[Tensor, "b v t d"], state: State, views: int, grid: Grid | None = None
    ) -> tuple[Float[Tensor, "b v t d"], State]:
        """`absorb` and `read` for `views` views after the other, each reading what was absorbed until then."""
        x = self._mix(x, None)
        state, read = scan(self.memory, state, self.memory_norm(x).flatten(1, 2), views * x.shape[2], grid)
        x = x + read.view_as(x)
        return x + self.mlp(self.mlp_norm(x)), state

    def _mix(self, x: Tensor, slice_tokens: int | None) -> Tensor:
        views = max(1, x.shape[1] if slice_tokens is None else slice_tokens // x.shape[2])
        return _joined([part + self.attention(self.attention_norm(part)) for part in x.split(views, dim=1)])


def _joined(parts: list[Tensor]) -> Tensor:
    """Slices of tokens or views joined again; a single one is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
