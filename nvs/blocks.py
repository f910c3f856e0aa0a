"""One block of the network: per-view attention, the memory layer and an MLP, each added to the tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from nvs.memory import MemoryLayer, State


class WindowAttention(nn.Module):
    """Self-attention among the tokens of each view, with RMS-normalised queries and keys."""

    def __init__(self, dim: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_norm = nn.RMSNorm(head_dim)
        self.k_norm = nn.RMSNorm(head_dim)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Float[Tensor, "b v t d"]) -> Float[Tensor, "b v t d"]:
        """Mix the tokens of each view."""
        q, k, v = rearrange(self.qkv(x), "b v t (r h d) -> r (b v) h t d", r=3, d=self.head_dim)
        # Norms work in the precision of their gains, also where autocast has made the products 16 bit.
        wide = self.q_norm.weight.dtype
        q, k = self.q_norm(q.to(wide)).to(v.dtype), self.k_norm(k.to(wide)).to(v.dtype)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(rearrange(mixed, "(b v) h t d -> b v t (h d)", b=x.shape[0]))


class MLP(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, dim: int, ratio: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, ratio * dim, bias=False)
        self.down = nn.Linear(ratio * dim, dim, bias=False)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        """Transform each token on its own."""
        return self.down(F.gelu(self.up(x)))


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
        self, x: Float[Tensor, "b v t d"], state: State, slice_tokens: int | None = None
    ) -> tuple[Float[Tensor, "b v t d"], State]:
        """Mix within views, then absorb all tokens of all views as one chunk; `read` completes the block.

        With `slice_tokens` about that many tokens of each scene are worked on at a time (whole views in attention).
        """
        x = self._mix(x, slice_tokens)
        normed = self.memory_norm(x).flatten(1, 2)
        return x, self.memory.update_state(state, normed, slice_tokens)

    def read(
        self, x: Float[Tensor, "b v t d"], state: State, slice_tokens: int | None = None
    ) -> Float[Tensor, "b v t d"]:
        """Read the memory for every token, then apply the MLP."""
        flat = x.flatten(1, 2)
        done = []
        for part in flat.split(slice_tokens or max(flat.shape[1], 1), dim=1):
            part = part + self.memory.apply_state(state, self.memory_norm(part))
            done.append(part + self.mlp(self.mlp_norm(part)))
        return torch.cat(done, dim=1).view_as(x)

    def render(
        self, x: Float[Tensor, "b v t d"], state: State, slice_tokens: int | None = None
    ) -> Float[Tensor, "b v t d"]:
        """Process tokens of views to be rendered: mix within views, read the memory, apply the MLP."""
        return self.read(self._mix(x, slice_tokens), state, slice_tokens)

    def _mix(self, x: Tensor, slice_tokens: int | None) -> Tensor:
        views = max(1, x.shape[1] if slice_tokens is None else slice_tokens // x.shape[2])
        return torch.cat([part + self.attention(self.attention_norm(part)) for part in x.split(views, dim=1)], dim=1)
