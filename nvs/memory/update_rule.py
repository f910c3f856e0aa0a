"""How tokens change fast weights, and how fast weights are read: LaCT and its reductions to linear attention.

Weights are matrices by name, with fast-weight heads (scenes x heads) as first axis: w1, and w0 and w2 where the kernel
is SwiGLU. Formulas: arXiv 2505.23884, section 3, and arXiv 2602.21204, section 5 and appendix H.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kernels import (
    add_and_restore_norm,
    apply_swiglu,
    fast_weight_gradients,
    linear_apply,
    linear_state,
    orthogonalize_together,
    swiglu_features,
)
from nvs.memory.lact_config import LaCTConfig

Weights = dict[str, Tensor]
Rates = tuple[Float[Tensor, "b n 1"], ...] | None
"""Learning rates of every token for w0, w1 and w2, or for w1 alone; None: 1 for all."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def features(config: LaCTConfig, weights: Weights, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n f"]:
    """What w1 multiplies: silu(x w0) * (x w2), or x itself."""
    if config.kernel == "linear":
        return x
    return swiglu_features(weights["w0"].to(x.dtype), weights["w2"].to(x.dtype), x)


def read(config: LaCTConfig, weights: Weights, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
    """f(x), in the precision of x."""
    weights = {name: w.to(x.dtype) for name, w in weights.items()}
    if config.kernel == "linear":
        return linear_apply(weights["w1"], x)
    return apply_swiglu(weights["w0"], weights["w1"], weights["w2"], x)


def gradients(
    config: LaCTConfig, weights: Weights, k: Float[Tensor, "b n d"], v: Float[Tensor, "b n d"], rates: Rates
) -> Weights:
    """Direction in which the inner loss falls, for every matrix that is updated: a sum over tokens."""
    if config.inner_loss == "squared_error":
        v = v - read(config, weights, k)
    if config.updated == "w1":
        g1 = linear_state(features(config, weights, k), v, None if rates is None else rates[0])
        return {"w1": g1.to(weights["w1"].dtype)}
    lr0, lr1, lr2 = (torch.ones_like(k[..., :1]),) * 3 if rates is None else rates
    w0, w1, w2 = (weights[name] for name in ("w0", "w1", "w2"))
    summed = fast_weight_gradients(w0, w1, w2, k, v, lr0, lr1, lr2)
    return {name: g.to(w1.dtype) for name, g in zip(("w0", "w1", "w2"), summed, strict=True)}


def step(config: LaCTConfig, weights: Weights, velocity: Weights, summed: Weights) -> tuple[Weights, Weights]:
    """Weights and velocity (empty without momentum) after one step along the gradients of a chunk."""
    if config.momentum:
        summed = velocity = {name: g + config.momentum * velocity[name] for name, g in summed.items()}
    moved = dict(weights)
    for name, change in zip(summed, directions(config, *summed.values()), strict=True):
        w = weights[name]
        moved[name] = add_and_restore_norm(w, change) if config.weight_norm else w + change
    return moved, velocity


def directions(config: LaCTConfig, *summed: Float[Tensor, "b _ _"]) -> tuple[Float[Tensor, "b _ _"], ...]:
    """The changes of matrices: their gradients, orthogonalised, and turned round to go up the inner loss."""
    if config.newton_schulz_steps:
        dtype = torch.float64 if summed[0].dtype == torch.float64 else DTYPES[config.newton_schulz_dtype]
        how = (config.newton_schulz_coefficients, config.newton_schulz_form)
        summed = orthogonalize_together(summed, config.newton_schulz_steps, dtype, *how)
    return summed if config.direction == "descent" else tuple(-g for g in summed)


def split_chunks(x: Float[Tensor, "b n d"], chunk: int) -> Float[Tensor, "bc l d"]:
    """Chunks of `chunk` tokens as further heads; the last is filled with zeros, which add nothing to a gradient."""
    missing = -x.shape[1] % chunk
    x = F.pad(x, (0, 0, 0, missing)) if missing else x
    return x.unflatten(1, (-1, chunk)).flatten(0, 1)


def parallel_gradients(
    config: LaCTConfig,
    weights: Weights,
    k: Float[Tensor, "b n d"],
    v: Float[Tensor, "b n d"],
    rates: Rates,
    chunk: int,
) -> Float[Tensor, "b c f d"]:
    """The gradient of w1 on every chunk of `chunk` tokens, all at once."""
    lr = None if rates is None else split_chunks(rates[0], chunk)
    keys = split_chunks(features(config, weights, k), chunk)
    summed = linear_state(keys, split_chunks(v, chunk), lr)
    return summed.to(weights["w1"].dtype).unflatten(0, (k.shape[0], -1))


def parallel_steps(
    config: LaCTConfig, velocity: Weights, summed: Float[Tensor, "b c f d"]
) -> tuple[Float[Tensor, "b c f d"], Weights]:
    """What every chunk adds to w1, from the gradients of all chunks, and the velocity after the last.

    With momentum a, step i is along sum_(j<=i) a^(i-j) G_j, which the first gradient takes over from earlier chunks.
    """
    c = config
    if c.inner_steps > 1:
        summed = summed.repeat_interleave(c.inner_steps, dim=1)
    if c.momentum:
        first = summed[:, :1] + c.momentum * velocity["w1"][:, None]
        ages = torch.arange(summed.shape[1], device=summed.device, dtype=summed.dtype)
        shares = (c.momentum ** (ages[:, None] - ages).clamp(min=0)).tril()
        summed = mix_chunks(shares, torch.cat([first, summed[:, 1:]], dim=1))
        velocity = {"w1": summed[:, -1]}
    steps = directions(c, summed.flatten(0, 1))[0].view_as(summed)
    return (steps if c.inner_steps == 1 else steps.unflatten(1, (-1, c.inner_steps)).sum(2)), velocity


def sum_until(steps: Float[Tensor, "b c f d"]) -> Float[Tensor, "b c f d"]:
    """The sum of the steps of each chunk and of those before it.

    `cumsum` computes the same, but over the second axis twice as slowly on a CPU as the product with a triangle does.
    """
    count = steps.shape[1]
    return mix_chunks(torch.ones(count, count, dtype=steps.dtype, device=steps.device).tril(), steps)


def mix_chunks(shares: Float[Tensor, "c e"], x: Float[Tensor, "b e f d"]) -> Float[Tensor, "b c f d"]:
    """Sums over chunks, in the precision of x also under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return (shares @ x.flatten(2)).unflatten(2, x.shape[2:])
