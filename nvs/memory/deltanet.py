"""Gated DeltaNet: a matrix per head that forgets a little and corrects itself, token by token (arXiv 2412.06464)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from kernels import linear_apply
from nvs.memory.base import Grid, MemoryConfig


@dataclass(frozen=True)
class DeltaNetConfig(MemoryConfig):
    """Settings of Gated DeltaNet."""

    kind: Literal["deltanet"] = "deltanet"
    """Which memory layer this is."""
    head_dim: int = 64
    """Width of one head; the model's width must be a multiple."""
    chunk: int = 64
    """Tokens that are worked on in one matrix product, a power of 2; only speed depends on it."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        super().__post_init__()
        self.check_whole("chunk")
        if self.chunk & (self.chunk - 1):
            raise ValueError(f"memory chunk must be a power of 2, got {self.chunk}")


class DeltaNetState(NamedTuple):
    """What keys are answered with, per scene and head: d^2 numbers."""

    s: Float[Tensor, "b h d d"]


class DeltaNetMemory(nn.Module):
    """Each token scales the state by alpha and moves its answer to k towards v by beta; the order of tokens matters.

    The short convolutions of the published layer are left out: neighbours in the list of tokens are none in space.
    """

    order_matters = True
    whole_views = False

    def __init__(self, dim: int, config: DeltaNetConfig) -> None:
        super().__init__()
        self.config = config
        self.heads = config.heads(dim)
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.forgetting = nn.Linear(dim, self.heads)
        self.correcting = nn.Linear(dim, self.heads)
        # All tokens are read after the last one, so heads start out remembering 100 to 10000 tokens.
        rate = torch.logspace(-4, -2, self.heads)
        self.forgetting.bias = nn.Parameter(rate.expm1().log())
        self.log_scale = nn.Parameter(torch.zeros(self.heads))
        nn.init.zeros_(self.correcting.bias)
        self.read_norm = nn.RMSNorm(config.head_dim, eps=1e-5)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def init_state(self, batch: int) -> DeltaNetState:
        """Every key is answered with zero."""
        d = self.config.head_dim
        return DeltaNetState(self.log_scale.new_zeros(batch, self.heads, d, d))

    def update_state(
        self, state: DeltaNetState, x: Float[Tensor, "b n d"], slice_tokens: int | None = None, grid: Grid | None = None
    ) -> DeltaNetState:
        """Absorb the tokens one after the other, in chunks."""
        if x.shape[1] == 0:
            return state
        s = state.s.to(self.log_scale.dtype)
        for part in x.split(slice_tokens or x.shape[1], dim=1):
            k, v = (self._heads(F.silu(y)) for y in self.key_value(part).chunk(2, dim=-1))
            # Decays are exponentials of sums: they are computed in the weights' own precision even under autocast.
            with torch.autocast(x.device.type, enabled=False):
                part = part.to(s.dtype)
                # Contiguous, as torch.compile may get the layout of softplus's gradient wrong.
                rates = (rearrange(f(part), "b n h -> b h n").contiguous() for f in (self.forgetting, self.correcting))
                forgetting, correcting = rates
                log_alpha = -self.log_scale.exp()[:, None] * F.softplus(forgetting)
                beta = torch.sigmoid(correcting)
                s = delta_rule(s, F.normalize(k, dim=-1), v, beta, log_alpha, self.config.chunk)
        return DeltaNetState(s)

    def apply_state(
        self, state: DeltaNetState, x: Float[Tensor, "b n d"], grid: Grid | None = None
    ) -> Float[Tensor, "b n d"]:
        """Answer each token's query, normalised and gated."""
        q = F.normalize(self._heads(F.silu(self.query(x))), dim=-1)
        read = linear_apply(state.s.flatten(0, 1).to(q.dtype), q.flatten(0, 1)).to(q.dtype)
        read = rearrange(self.read_norm(read), "(b h) n d -> b n (h d)", h=self.heads)
        return self.out(read * F.silu(self.gate(x)))

    def _heads(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n (h d) -> b h n d", h=self.heads).to(self.log_scale.dtype)


def delta_rule(
    s: Float[Tensor, "b h d e"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n e"],
    beta: Float[Tensor, "b h n"],
    log_alpha: Float[Tensor, "b h n"],
    chunk: int = 64,
) -> Float[Tensor, "b h d e"]:
    """State after s <- alpha_n s, s <- s + beta_n k_n^T (v_n - k_n s) for each token (arXiv 2412.06464, equation 10).

    In a chunk, token n writes k_n^T u_n, where u solves a triangular system (the same, section 3.3). All chunks'
    systems are solved at once, then the state goes through the chunks.
    """
    missing = -k.shape[2] % chunk  # tokens with beta 0 and alpha 1 change nothing
    k, v = (F.pad(y, (0, 0, 0, missing)).unflatten(2, (-1, chunk)) for y in (k, v))
    beta, log_alpha = (F.pad(y, (0, missing)).unflatten(2, (-1, chunk)) for y in (beta, log_alpha))
    decay = log_alpha.cumsum(-1)
    between = decay[..., :, None] - decay[..., None, :]
    earlier = torch.ones(chunk, chunk, dtype=torch.bool, device=k.device).tril(-1)
    weights = between.masked_fill(~earlier, -math.inf).exp()
    system = beta[..., None] * weights * (k @ k.transpose(-1, -2))
    decayed = k * decay[..., None].exp()
    right = beta[..., None] * torch.cat([v, decayed], dim=-1)
    from_values, from_state = (inverse_of_one_plus(system) @ right).split([v.shape[-1], k.shape[-1]], dim=-1)
    to_end = k * (decay[..., -1:] - decay)[..., None].exp()
    kept = decay[..., -1].exp()
    for c in range(k.shape[2]):
        u = from_values[:, :, c] - from_state[:, :, c] @ s
        s = kept[:, :, c, None, None] * s + to_end[:, :, c].transpose(-1, -2) @ u
    return s


def inverse_of_one_plus(lower: Float[Tensor, "*c n n"]) -> Float[Tensor, "*c n n"]:
    """Inverse of 1 + L for L with zeros on and above the diagonal, n a power of 2.

    The inverses of blocks on the diagonal are put together in pairs, so that six rounds of products do for n = 64, and
    nothing grows that substitution would not let grow.
    """
    n, size = lower.shape[-1], 1
    inverse = torch.ones_like(lower[..., None, None, 0])
    while size < n:
        blocks = rearrange(lower, "... (i r) (j c) -> ... r c i j", r=2 * size, c=2 * size).diagonal(dim1=-2, dim2=-1)
        corner = rearrange(blocks[..., size:, :size, :], "... r c i -> ... i r c")
        first, second = inverse[..., 0::2, :, :], inverse[..., 1::2, :, :]
        left = torch.cat([first, -second @ corner @ first], dim=-2)
        inverse = torch.cat([left, F.pad(second, (0, 0, size, 0))], dim=-1)
        size *= 2
    return inverse[..., 0, :, :]
