"""TTT-Linear and TTT-MLP: a small network per head, trained on keys and values while reading (arXiv 2407.04620).

The inner network is f(x) = x + LN(x w1 + b1), or x + LN(gelu(x w1 + b1) w2 + b2). Its loss for a token is
|f(k) - v|^2 / 2; as f has a residual, LN(...) is what has to match the target v - k. There are two forms: for sets, all
tokens are one mini-batch and their order does not matter; the causal one goes through the tokens in mini-batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from nvs.memory.base import Grid, MemoryConfig

InnerLayers = list[tuple[Float[Tensor, "b h _ _"], Float[Tensor, "b h 1 _"]]]
"""Weight and bias of each layer of the inner network."""
EPSILON = 1e-6


@dataclass(frozen=True)
class TTTConfig(MemoryConfig):
    """Settings that TTT-Linear and TTT-MLP share."""

    head_dim: int = 64
    """Width of one head; the model's width must be a multiple."""
    base_lr: float = 1.0
    """Largest learning rate of a token, before it is divided by `head_dim`."""
    mini_batch: int = 0
    """Tokens that share one step (published for text: 16); 0: all that are absorbed together, in any order."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        super().__post_init__()
        self.check_whole("mini_batch", least=0)
        if not self.base_lr > 0:
            raise ValueError(f"memory base_lr must be above 0, got {self.base_lr}")


@dataclass(frozen=True)
class TTTLinearConfig(TTTConfig):
    """Settings of TTT-Linear; the learning rate is the published one."""

    kind: Literal["ttt_linear"] = "ttt_linear"
    """Which memory layer this is."""


@dataclass(frozen=True)
class TTTMLPConfig(TTTConfig):
    """Settings of TTT-MLP; learning rate and expansion are the published ones."""

    kind: Literal["ttt_mlp"] = "ttt_mlp"
    """Which memory layer this is."""
    base_lr: float = 0.1
    """Largest learning rate of a token, before it is divided by `head_dim`."""
    expansion: int = 4
    """Hidden width of the inner network over `head_dim`."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        super().__post_init__()
        self.check_whole("expansion")


class TTTLinearState(NamedTuple):
    """The inner network of each scene and head: d (d + 1) numbers a head."""

    w1: Float[Tensor, "b h d d"]
    b1: Float[Tensor, "b h 1 d"]


class TTTMLPState(NamedTuple):
    """The inner network of each scene and head: 2 d f + d + f numbers a head."""

    w1: Float[Tensor, "b h d f"]
    b1: Float[Tensor, "b h 1 f"]
    w2: Float[Tensor, "b h f d"]
    b2: Float[Tensor, "b h 1 d"]


class TTTMemory(nn.Module):
    """Test-time training with a squared error: TTT-Linear or TTT-MLP, as the configuration says.

    Queries, keys and targets are normalised as in the published variant for sets (ttt-video-dit). With `mini_batch` set
    the state depends on the order of tokens; `extend` then starts a new mini-batch.
    """

    whole_views = False

    def __init__(self, dim: int, config: TTTConfig) -> None:
        super().__init__()
        self.config = config
        self.order_matters = config.mini_batch > 0
        self.heads = heads = config.heads(dim)
        self.state_type = TTTMLPState if isinstance(config, TTTMLPConfig) else TTTLinearState
        d = config.head_dim
        widths = (d, config.expansion * d, d) if isinstance(config, TTTMLPConfig) else (d, d)
        self.initial = nn.ParameterList()
        for i, j in pairwise(widths):
            self.initial.append(nn.Parameter(torch.randn(heads, i, j) * 0.02))
            self.initial.append(nn.Parameter(torch.zeros(heads, 1, j)))
        self.gain = nn.Parameter(torch.ones(heads, 1, d))
        self.bias = nn.Parameter(torch.zeros(heads, 1, d))
        self.query = nn.Linear(dim, dim, bias=False)
        self.key_value = nn.Linear(dim, 2 * dim, bias=False)
        self.rates = nn.Linear(dim, heads)
        nn.init.zeros_(self.rates.bias)
        self.read_norm = nn.LayerNorm(dim, eps=EPSILON)
        self.out = nn.Linear(dim, dim, bias=False)

    def init_state(self, batch: int) -> TTTLinearState | TTTMLPState:
        """The learned inner network, once per scene."""
        return self.state_type(*(p.expand(batch, *p.shape) for p in self.initial))

    def update_state(
        self,
        state: TTTLinearState | TTTMLPState,
        x: Float[Tensor, "b n d"],
        slice_tokens: int | None = None,
        grid: Grid | None = None,
    ) -> TTTLinearState | TTTMLPState:
        """One step down the mean gradient of the loss for each mini-batch of tokens."""
        if x.shape[1] == 0:
            return state
        layers = self._layers(state)
        for batch in x.split(self.config.mini_batch or x.shape[1], dim=1):
            updated, count = layers, batch.shape[1]
            for part in batch.split(min(slice_tokens or count, count), dim=1):
                k, target, rates = self._lessons(part)
                steps = inner_gradients(layers, k, target, self.gain, self.bias)
                updated = _descend(updated, steps, rates / count)
            layers = updated
        return self._state(layers)

    def apply_state(
        self, state: TTTLinearState | TTTMLPState, x: Float[Tensor, "b n d"], grid: Grid | None = None
    ) -> Float[Tensor, "b n d"]:
        """Run each token's query through the inner network as it is now: q + LN(f(q))."""
        return self._output(inner_read(self._layers(state), self._query(x), self.gain, self.bias))

    def read_while_absorbing(
        self, state: TTTLinearState | TTTMLPState, x: Float[Tensor, "b n d"]
    ) -> tuple[Float[Tensor, "b n d"], TTTLinearState | TTTMLPState]:
        """The published causal layer: each token reads the state that itself and those before it have made."""
        k, target, rates = self._lessons(x)
        mini_batch = self.config.mini_batch or max(x.shape[1], 1)
        q, layers = self._query(x), self._layers(state)
        read, layers = causal_pass(layers, q, k, target, rates, self.gain, self.bias, mini_batch)
        return self._output(read), self._state(layers)

    def _layers(self, state: TTTLinearState | TTTMLPState) -> InnerLayers:
        # A state that was stored in 16 bits goes on in the precision of the learned weights.
        tensors = [t.to(self.gain.dtype) for t in state]
        return list(zip(tensors[::2], tensors[1::2], strict=True))

    def _state(self, layers: InnerLayers) -> TTTLinearState | TTTMLPState:
        return self.state_type(*(t for layer in layers for t in layer))

    def _query(self, x: Tensor) -> Tensor:
        return F.normalize(self._heads(self.query(x)), dim=-1)

    def _lessons(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = (self._heads(y) for y in self.key_value(x).chunk(2, dim=-1))
        k = F.normalize(k, dim=-1)
        target = _normalize(v - k, self.gain, self.bias)
        # Rates are computed in the weights' own precision even under autocast.
        with torch.autocast(x.device.type, enabled=False):
            rates = torch.sigmoid(self.rates(x.to(self.rates.weight.dtype))) * (self.config.base_lr / k.shape[-1])
        return k, target, rearrange(rates, "b n h -> b h n 1")

    def _output(self, read: Tensor) -> Tensor:
        return self.out(self.read_norm(rearrange(read, "b h n d -> b n (h d)")))

    def _heads(self, x: Tensor) -> Tensor:
        return rearrange(x, "b n (h d) -> b h n d", h=self.heads).to(self.gain.dtype)


def inner_read(
    layers: InnerLayers, q: Float[Tensor, "b h n d"], gain: Float[Tensor, "h 1 d"], bias: Float[Tensor, "h 1 d"]
) -> Float[Tensor, "b h n d"]:
    """The inner network with its residual and layer norm (arXiv 2407.04620, section 2.7)."""
    z = q
    for i, (w, b) in enumerate(layers):
        z = (z if i == 0 else _gelu(z)) @ w + b
    return q + _normalize(z, gain, bias)


def inner_gradients(
    layers: InnerLayers,
    k: Float[Tensor, "b h n d"],
    target: Float[Tensor, "b h n d"],
    gain: Float[Tensor, "h 1 d"],
    bias: Float[Tensor, "h 1 d"],
) -> list[tuple[Float[Tensor, "b h n _"], Float[Tensor, "b h n _"]]]:
    """Of each inner layer the input x and the loss's gradient g at its output: a token's weight gradient is x^T g.

    The loss is |LN(z) gain + bias - target|^2 / 2 with z the last layer's output (arXiv 2407.04620, equations 2 and 7).
    """
    inputs, outputs = [k], []
    for i, (w, b) in enumerate(layers):
        if i > 0:
            inputs.append(_gelu(outputs[-1]))
        outputs.append(inputs[-1] @ w + b)
    gradients = [_norm_gradient(outputs[-1], target, gain, bias)]
    for (w, _), z in zip(layers[:0:-1], outputs[-2::-1], strict=True):
        gradients.append((gradients[-1] @ w.transpose(-1, -2)) * _gelu_slope(z))
    return list(zip(inputs, reversed(gradients), strict=True))


def causal_pass(
    layers: InnerLayers,
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    target: Float[Tensor, "b h n d"],
    rates: Float[Tensor, "b h n 1"],
    gain: Float[Tensor, "h 1 d"],
    bias: Float[Tensor, "h 1 d"],
    mini_batch: int,
) -> tuple[Float[Tensor, "b h n d"], InnerLayers]:
    """Every token's causal read and the last weights, in the dual form (arXiv 2407.04620, section 2.5 and appendix A).

    In a mini-batch all gradients are taken at its first weights, and token i reads weights that went down the mean
    gradient of tokens 1 to i: x w_i = x w - sum_(j<=i) rate_j / i (x x_j) g_j, without ever forming w_i.
    """
    reads = []
    batches = zip(*(x.split(mini_batch, dim=2) for x in (q, k, target, rates)), strict=True)
    for qs, ks, targets, etas in batches:
        steps, count = inner_gradients(layers, ks, targets, gain, bias), qs.shape[2]
        positions = torch.arange(1, count + 1, device=q.device, dtype=etas.dtype)
        eta = torch.tril(etas.transpose(-1, -2) / positions[:, None])
        z = qs
        for i, ((w, b), (x, g)) in enumerate(zip(layers, steps, strict=True)):
            z = z if i == 0 else _gelu(z)
            z = z @ w - (eta * (z @ x.transpose(-1, -2))) @ g + b - eta @ g
        reads.append(qs + _normalize(z, gain, bias))
        layers = _descend(layers, steps, etas / count)
    return torch.cat(reads, dim=2) if reads else q, layers


def _descend(layers: InnerLayers, steps: list[tuple[Tensor, Tensor]], rates: Tensor) -> InnerLayers:
    return [
        (w - (x * rates).transpose(-1, -2) @ g, b - (rates * g).sum(2, keepdim=True))
        for (w, b), (x, g) in zip(layers, steps, strict=True)
    ]


def _normalize(z: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(z, z.shape[-1:], eps=EPSILON) * gain + bias


def _norm_gradient(z: Tensor, target: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    """Gradient of |LN(z) gain + bias - target|^2 / 2 with respect to z."""
    centred = z - z.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPSILON)
    unit = centred * scale
    g = (unit * gain + bias - target) * gain
    return (g - g.mean(-1, keepdim=True) - unit * (g * unit).mean(-1, keepdim=True)) * scale


def _gelu(z: Tensor) -> Tensor:
    return F.gelu(z, approximate="tanh")


def _gelu_slope(z: Tensor) -> Tensor:
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh(root * (z + cubic * z**3))
    return 0.5 * (1 + t) + 0.5 * z * (1 - t.square()) * root * (1 + 3 * cubic * z.square())
