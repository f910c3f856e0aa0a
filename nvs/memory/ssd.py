"""Mamba-2's state-space duality in both directions: decaying sums of inputs (arXiv 2405.21060)."""

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


@dataclass(frozen=True)
class SSDConfig(MemoryConfig):
    """Settings of the bidirectional state-space layer."""

    kind: Literal["ssd"] = "ssd"
    """Which memory layer this is."""
    head_dim: int = 64
    """Width of one head; the model's width must be a multiple."""
    state_size: int = 64
    """Numbers that are kept for each channel and direction."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        super().__post_init__()
        self.check_whole("state_size")


class SSDState(NamedTuple):
    """Of each scene and head: sums that end at the last and at the first token, and how far apart these are.

    That is h (2 s d + 1) numbers with s the state size. `log_decay` is the decay of the backward sums over all tokens
    absorbed, so that tokens absorbed later enter them as if all had come at once.
    """

    forward: Float[Tensor, "b h s d"]
    backward: Float[Tensor, "b h s d"]
    log_decay: Float[Tensor, "b h"]


class SSDMemory(nn.Module):
    """Two decaying sums over the list of tokens, one from each side, read after the last token; order matters.

    As in Mamba-2, B, C are shared by all heads, and a gate multiplies what is read. B and C are normalised as in Jamba
    (arXiv 2403.19887). Left out: the short convolution, as neighbours in the list of tokens are none in space, and the
    skip D x, as the network's residual does the same.
    """

    order_matters = True
    whole_views = False

    def __init__(self, dim: int, config: SSDConfig) -> None:
        super().__init__()
        self.config = config
        self.heads = config.heads(dim)
        self.query = nn.Linear(dim, config.state_size, bias=False)
        self.key = nn.Linear(dim, config.state_size, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.steps = nn.Linear(dim, 2 * self.heads)
        nn.init.constant_(self.steps.bias, -2.25)  # steps of about 0.1
        # All tokens are read after the last one, so heads start out remembering 100 to 10000 tokens.
        self.log_rate = nn.Parameter(torch.logspace(-3, -1, self.heads).log().repeat(2, 1))
        self.k_norm = nn.RMSNorm(config.state_size, eps=1e-5)
        self.q_norm = nn.RMSNorm(config.state_size, eps=1e-5)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.read_norm = nn.RMSNorm(dim, eps=1e-5)
        self.out = nn.Linear(dim, dim, bias=False)

    def init_state(self, batch: int) -> SSDState:
        """Sums of nothing."""
        zeros = self.log_rate.new_zeros(batch, self.heads, self.config.state_size, self.config.head_dim)
        return SSDState(zeros, zeros, zeros[:, :, 0, 0])

    def update_state(
        self, state: SSDState, x: Float[Tensor, "b n d"], slice_tokens: int | None = None, grid: Grid | None = None
    ) -> SSDState:
        """Append tokens to the list; each slice is a chunk of the published algorithm."""
        for part in x.split(slice_tokens or max(x.shape[1], 1), dim=1):
            if part.shape[1]:
                state = self._append(state, part)
        return state

    def apply_state(
        self, state: SSDState, x: Float[Tensor, "b n d"], grid: Grid | None = None
    ) -> Float[Tensor, "b n d"]:
        """Read both sums with each token's C, gate and normalise."""
        wide = self.log_rate.dtype
        c = self.q_norm(F.silu(self.query(x)).to(wide)).repeat_interleave(self.heads, dim=0)
        both = (state.forward.to(wide) + state.backward.to(wide)).flatten(0, 1)
        read = rearrange(linear_apply(both, c).to(wide), "(b h) n d -> b n (h d)", h=self.heads)
        return self.out(self.read_norm(read * F.silu(self.gate(x))))

    def _append(self, state: SSDState, x: Tensor) -> SSDState:
        wide = self.log_rate.dtype
        k = self.k_norm(F.silu(self.key(x)).to(wide))
        v = rearrange(F.silu(self.value(x)), "b n (h d) -> b h n d", h=self.heads).to(wide)
        # Decays are exponentials of sums: they are computed in the weights' own precision even under autocast.
        with torch.autocast(x.device.type, enabled=False):
            # Contiguous, as torch.compile may get the layout of softplus's gradient wrong.
            steps = F.softplus(rearrange(self.steps(x.to(wide)), "b n (r h) -> r b h n", r=2).contiguous())
            log_decay = -steps * self.log_rate.exp()[:, None, :, None]
        return append_tokens(state, k, v, steps, log_decay)


def append_tokens(
    state: SSDState,
    k: Float[Tensor, "b n s"],
    v: Float[Tensor, "b h n d"],
    steps: Float[Tensor, "2 b h n"],
    log_decay: Float[Tensor, "2 b h n"],
) -> SSDState:
    """State after s <- exp(log_decay_n) s + step_n k_n^T v_n for every token, from the first on and from the last on.

    One chunk in matrix form (arXiv 2405.21060, section 6): tokens are weighted with their decay up to the chunk's end.
    """
    heads, wide = v.shape[1], k.dtype
    total = log_decay.sum(-1, keepdim=True)
    to_end = total[0] - log_decay[0].cumsum(-1)
    to_start = log_decay[1].cumsum(-1) - log_decay[1] + state.log_decay.to(wide)[..., None]
    keys, values = k.repeat_interleave(heads, dim=0), v.flatten(0, 1)
    sums = [
        linear_state(keys, values, (step * decay.exp()).flatten(0, 1)[..., None]).view_as(state.forward)
        for step, decay in zip(steps, (to_end, to_start), strict=True)
    ]
    return SSDState(
        total[0][..., None].exp() * state.forward.to(wide) + sums[0],
        state.backward.to(wide) + sums[1],
        state.log_decay.to(wide) + total[1][..., 0],
    )
