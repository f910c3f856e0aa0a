"""ViTTT: a simplified gated unit and a 3x3 depthwise convolution over each view's patches (arXiv 2512.01643)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from nvs.memory.base import Grid, MemoryConfig

SCALE = 9**-0.5
"""Factor of the inner loss."""


@dataclass(frozen=True)
class ViTTTConfig(MemoryConfig):
    """Settings of the ViTTT memory layer."""

    kind: Literal["vittt"] = "vittt"
    """Which memory layer this is."""
    head_dim: int = 64
    """Width of one head, and channels of the convolution; the model's width must be a multiple."""
    normalize: bool = True
    """Bring queries, keys, values and what is read to root mean square 1; False is the published layer."""


class ViTTTState(NamedTuple):
    """Fast weights of each scene: two matrices a head, and one convolution: (2 h d + 9) d numbers."""

    w1: Float[Tensor, "b h d d"]
    w2: Float[Tensor, "b h d d"]
    w3: Float[Tensor, "b d 3 3"]


class ViTTTMemory(nn.Module):
    """One step of gradient descent on a gated unit per head and on a depthwise convolution beside the heads.

    Read-out of a token: (q w1) * silu(q w2), and its view's queries convolved with w3. Steps have learning rate 1, and
    every gradient g is divided by 1 + |g|.
    """

    order_matters = False
    whole_views = True

    def __init__(self, dim: int, config: ViTTTConfig) -> None:
        super().__init__()
        self.config = config
        self.heads, d = config.heads(dim), config.head_dim
        self.w1 = nn.Parameter(torch.randn(self.heads, d, d) * d**-0.5)
        self.w2 = nn.Parameter(torch.randn(self.heads, d, d) * d**-0.5)
        self.w3 = nn.Parameter(torch.randn(d, 3, 3) / 3)
        width = dim + d
        self.query = nn.Linear(dim, width)
        self.key_value = nn.Linear(dim, 2 * width)
        self.out = nn.Linear(width, dim)
        for linear in (self.query, self.key_value, self.out):
            nn.init.zeros_(linear.bias)
        self.read_norm = nn.RMSNorm(d, eps=1e-5) if config.normalize else nn.Identity()

    def init_state(self, batch: int) -> ViTTTState:
        """The learned fast weights, once per scene."""
        return ViTTTState(*(w.expand(batch, *w.shape) for w in (self.w1, self.w2, self.w3)))

    def update_state(
        self, state: ViTTTState, x: Float[Tensor, "b n d"], slice_tokens: int | None = None, grid: Grid | None = None
    ) -> ViTTTState:
        """One step up the mean over tokens of <read-out of k, v> / 3; slices are whole views."""
        if x.shape[1] == 0:
            return state
        grid = _checked(grid, x.shape[1])
        w1, w2, w3 = (w.to(self.w1.dtype) for w in state)
        g1, g2, g3 = torch.zeros_like(w1), torch.zeros_like(w2), torch.zeros_like(w3)
        per_view = grid[0] * grid[1]
        size = max((slice_tokens or x.shape[1]) // per_view, 1) * per_view
        for part in x.split(size, dim=1):
            keys, values = self.key_value(part).chunk(2, dim=-1)
            (k, k_view), (v, v_view) = self._split(keys, grid), self._split(values, grid)
            v, v_view = v * (SCALE / x.shape[1]), v_view * (SCALE / x.shape[1])
            more1, more2 = gated_gradients(w1, w2, k, v)
            g1, g2, g3 = g1 + more1, g2 + more2, g3 + convolution_gradient(k_view, v_view)
        return ViTTTState(w1 + _limit(g1, (-2,)), w2 + _limit(g2, (-2,)), w3 + _limit(g3, (-2, -1)))

    def apply_state(
        self, state: ViTTTState, x: Float[Tensor, "b n d"], grid: Grid | None = None
    ) -> Float[Tensor, "b n d"]:
        """Run each token's query through the gated units, and each view's queries through the convolution."""
        q, q_view = self._split(self.query(x), _checked(grid, x.shape[1]))
        w1, w2, w3 = (w.to(self.w1.dtype) for w in state)
        read = (q @ w1) * F.silu(q @ w2)
        seen = rearrange(convolve(q_view, w3), "b d v i j -> b 1 (v i j) d")
        read = self.read_norm(torch.cat([read, seen], dim=1).to(self.w1.dtype))
        return self.out(rearrange(read, "b h n d -> b n (h d)"))

    def _split(self, x: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        """Heads as sequences [b h n d], and the channels beside them as pictures [b d v i j]."""
        x = rearrange(x, "b n (h d) -> b h n d", h=self.heads + 1).to(self.w1.dtype)
        if self.config.normalize:
            x = F.rms_norm(x, x.shape[-1:], eps=1e-5)
        rows, columns, _ = grid
        return x[:, :-1], rearrange(x[:, -1], "b (v i j) d -> b d v i j", i=rows, j=columns)


def gated_gradients(
    w1: Float[Tensor, "b h d d"], w2: Float[Tensor, "b h d d"], k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n d"]
) -> tuple[Float[Tensor, "b h d d"], Float[Tensor, "b h d d"]]:
    """Ascent direction of sum_n <(k w1) * silu(k w2), v> for w1 and w2 (arXiv 2512.01643, simplified gated unit)."""
    z1, z2 = k @ w1, k @ w2
    gate = torch.sigmoid(z2)
    slope = gate * (1 + z2 * (1 - gate))
    return k.transpose(-1, -2) @ (v * z2 * gate), k.transpose(-1, -2) @ (v * z1 * slope)


def convolve(x: Float[Tensor, "b d v i j"], w: Float[Tensor, "b d 3 3"]) -> Float[Tensor, "b d v i j"]:
    """Depthwise 3x3 convolution of every view with its scene's weights; beyond the border there are zeros."""
    b, d = w.shape[:2]
    y = F.conv2d(rearrange(x, "b d v i j -> v (b d) i j"), w.reshape(b * d, 1, 3, 3), padding=1, groups=b * d)
    return rearrange(y, "v (b d) i j -> b d v i j", b=b)


def convolution_gradient(k: Float[Tensor, "b d v i j"], v: Float[Tensor, "b d v i j"]) -> Float[Tensor, "b d 3 3"]:
    """Ascent direction of sum <convolve(k, w), v> for w (arXiv 2512.01643): how k, shifted, goes along with v."""
    rows, columns = k.shape[-2:]
    wide = F.pad(k, (1, 1, 1, 1))
    shifted = [wide[..., i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    return torch.stack([(s * v).sum((2, 3, 4)) for s in shifted], dim=-1).unflatten(-1, (3, 3))


def _limit(g: Tensor, axes: tuple[int, ...]) -> Tensor:
    return g / (torch.linalg.vector_norm(g, dim=axes, keepdim=True) + 1.0)


def _checked(grid: Grid | None, tokens: int) -> Grid:
    if grid is None or tokens % (grid[0] * grid[1]):
        raise ValueError(
            f"ViTTT needs whole views: {tokens} tokens are none of {grid and grid[:2]} patches (rows, columns) each"
        )
    return grid
