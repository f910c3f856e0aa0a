"""LaCT: SwiGLU fast weights, one orthogonalised gradient step per chunk (arXiv 2505.23884)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from kernels import add_and_restore_norm, apply_swiglu, fast_weight_gradients, orthogonalize

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class LaCTConfig:
    """Settings of the LaCT memory layer; the defaults are the published ones."""

    kind: Literal["lact"] = "lact"
    """Which memory layer this is."""
    head_dim: int = 768
    """Width of one fast-weight head; the model's width must be a multiple."""
    expansion: int = 2
    """Hidden width of the fast weights over `head_dim` (2 in "ttt2x")."""
    base_lr: float = 0.01
    """Learning rate that tokens start from."""
    newton_schulz_steps: int = 5
    """Newton-Schulz iterations per update."""
    newton_schulz_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Precision of the Newton-Schulz iterations."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("head_dim", "expansion", "newton_schulz_steps"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"memory {name} must be a whole number of 1 or more, got {getattr(self, name)}")
        if not self.base_lr > 0:
            raise ValueError(f"memory base_lr must be above 0, got {self.base_lr}")


class LaCTState(NamedTuple):
    """Fast weights of each scene and head: gate, down and up matrix."""

    w0: Float[Tensor, "b h d f"]
    w1: Float[Tensor, "b h f d"]
    w2: Float[Tensor, "b h d f"]


class LaCTMemory(nn.Module):
    """Large-chunk test-time training: the state is a SwiGLU network that is trained on keys and values."""

    def __init__(self, dim: int, config: LaCTConfig) -> None:
        super().__init__()
        if dim % config.head_dim:
            raise ValueError(f"model width {dim} is not a multiple of the memory's head_dim {config.head_dim}")
        self.config = config
        self.heads = dim // config.head_dim
        d, f = config.head_dim, config.head_dim * config.expansion
        self.w0 = nn.Parameter(torch.randn(self.heads, d, f) * math.sqrt(2 / d))
        self.w1 = nn.Parameter(torch.randn(self.heads, f, d) * math.sqrt(2 / f))
        self.w2 = nn.Parameter(torch.randn(self.heads, d, f) * math.sqrt(2 / d))
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.rates = nn.Linear(dim, 3 * self.heads)
        nn.init.zeros_(self.rates.bias)
        self.read_norm = nn.RMSNorm(d, eps=1e-5)
        self.out = nn.Linear(dim, dim, bias=False)

    def init_state(self, batch: int) -> LaCTState:
        """The learned fast weights, once per scene."""
        return LaCTState(*(w.expand(batch, -1, -1, -1) for w in (self.w0, self.w1, self.w2)))

    def update_state(self, state: LaCTState, x: Float[Tensor, "b n d"], slice_tokens: int | None = None) -> LaCTState:
        """One step up the gradient of sum_n lr_n <f(k_n), v_n> over all tokens, orthogonalised, norms restored."""
        if x.shape[1] == 0:
            return state
        # A state that was stored in 16 bits goes on in the precision of the learned weights.
        w0, w1, w2 = weights = [rearrange(w, "b h i j -> (b h) i j").to(self.w0.dtype) for w in state]
        total: list[Tensor] | None = None
        for part in x.split(slice_tokens or x.shape[1], dim=1):
            (k, v), (lr0, lr1, lr2) = self._keys_and_values(part), self._learning_rates(part)
            gradients = fast_weight_gradients(w0, w1, w2, k, v, lr0, lr1, lr2)
            gradients = [g.to(w.dtype) for g, w in zip(gradients, weights, strict=True)]
            total = gradients if total is None else [a + b for a, b in zip(total, gradients, strict=True)]
        assert total is not None
        steps, dtype = self.config.newton_schulz_steps, DTYPES[self.config.newton_schulz_dtype]
        updated = [add_and_restore_norm(w, orthogonalize(g, steps, dtype)) for w, g in zip(weights, total, strict=True)]
        return LaCTState(*(rearrange(w, "(b h) i j -> b h i j", h=self.heads) for w in updated))

    def apply_state(self, state: LaCTState, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        """Run each token's query through the fast weights."""
        q = _unit(self._heads(F.silu(self.query(x))))
        w0, w1, w2 = (rearrange(w, "b h i j -> (b h) i j").to(q.dtype) for w in state)
        read = self.read_norm(apply_swiglu(w0, w1, w2, q).to(self.read_norm.weight.dtype))
        return self.out(rearrange(read, "(b h) n d -> b n (h d)", h=self.heads))

    def _keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        k, v = F.silu(self.key_value(x)).chunk(2, dim=-1)
        return _unit(self._heads(k)), self._heads(v)

    def _learning_rates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Rates span orders of magnitude: they are computed in the weights' own precision even under autocast.
        with torch.autocast(x.device.type, enabled=False):
            raw = self.rates(x.to(self.rates.weight.dtype)) + math.log(math.expm1(self.config.base_lr))
            lr0, lr1, lr2 = rearrange(F.softplus(raw), "b n (r h) -> r (b h) n 1", r=3)
        return lr0, lr1, lr2

    def _heads(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n (h d) -> (b h) n d", h=self.heads)


def _unit(x: Tensor) -> Tensor:
    return x / (x.norm(dim=-1, keepdim=True) + 1e-5)
