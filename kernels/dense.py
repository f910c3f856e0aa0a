"""Linear layers and attention within views: PyTorch's own, and on a CPU without gradients faster ways to the same.

Under autocast products are computed in its dtype, as everywhere.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kernels import onednn
from kernels.backend import runs_lean
from kernels.checks import check_alike, check_floating, check_shape, operand_dtype

SCORES = 2**20
"""Attention scores that are worked on at a time: few enough to stay in a CPU's cache."""


def linear(
    x: Float[Tensor, "*b k"], weight: Float[Tensor, "m k"], then: onednn.Activation = "none"
) -> Float[Tensor, "*b m"]:
    """x weight^T, then SiLU, GELU or nothing."""
    check_shape("weight", weight, (None, x.shape[-1]))
    check_alike(x=x, weight=weight)
    if then not in onednn.NAMES:
        raise ValueError(f"then is {then!r}, expected one of {', '.join(onednn.NAMES)}")
    dtype = operand_dtype(x)
    if runs_lean() and onednn.pays(x, weight.shape[0], dtype):
        return onednn.linear(x.to(dtype), weight.to(dtype), then)
    y = F.linear(x, weight)
    if then == "none":
        return y
    return F.silu(y) if then == "silu" else F.gelu(y)


def window_attention(
    qkv: Float[Tensor, "n t 3*h*d"], q_gain: Float[Tensor, " d"], k_gain: Float[Tensor, " d"]
) -> Float[Tensor, "n t h*d"]:
    """Softmax attention among the t tokens of each of n views: queries, keys and values of all heads lie side by side.

    Queries and keys are divided by their root mean square over a head and multiplied by a gain (QK-norm).
    """
    d = q_gain.shape[0]
    check_shape("k_gain", k_gain, (d,))
    check_shape("qkv", qkv, (None, None, None))
    check_floating(qkv=qkv, q_gain=q_gain, k_gain=k_gain)
    if qkv.shape[2] % (3 * d):
        raise ValueError(f"qkv has {qkv.shape[2]} channels, expected a multiple of 3 x {d}")
    parts = qkv.unflatten(2, (3, -1, d))
    if runs_lean() and qkv.device.type == "cpu" and not torch.compiler.is_compiling():
        mixed = _lean_attention(parts, q_gain, k_gain)
    else:
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        # Norms work in the precision of their gains, also where autocast has made the products 16 bit. On a CPU so does
        # attention: in 16 bits the backward pass of PyTorch's takes several times as long.
        wide = q_gain.dtype if qkv.device.type == "cpu" else v.dtype
        q, k = (F.rms_norm(x.to(g.dtype), (d,), g).to(wide) for x, g in ((q, q_gain), (k, k_gain)))
        with torch.autocast(qkv.device.type, enabled=False):
            mixed = F.scaled_dot_product_attention(q, k, v.to(wide)).to(v.dtype)
    return mixed.transpose(1, 2).flatten(2)


def _lean_attention(parts: Tensor, q_gain: Tensor, k_gain: Tensor) -> Tensor:
    """Attention [n h t d]; both gains and the scale go to the queries, which leaves the products as they are."""
    dtype, d = parts.dtype, parts.shape[-1]
    wide = torch.float32 if dtype.itemsize < 4 else dtype
    square = torch.linalg.vector_norm(parts[:, :, :2], dim=-1, keepdim=True, dtype=wide).square_()
    scale = square.div_(d).add_(torch.finfo(q_gain.dtype).eps).rsqrt_().to(dtype)
    q, k, v = (parts[:, :, i].transpose(1, 2) for i in range(3))
    q_scale, k_scale = (scale[:, :, i].transpose(1, 2) for i in range(2))
    q, k = (torch.mul(x, s, out=x.new_empty(x.shape)) for x, s in ((q, q_scale), (k, k_scale)))
    q.mul_((q_gain * k_gain * d**-0.5).to(dtype))
    if dtype == torch.float32 or dtype == torch.float64:
        return F.scaled_dot_product_attention(q, k, v, scale=1.0)
    return _blockwise_attention(q, k, v.contiguous())


def _blockwise_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in 16 bits, a few heads or rows at a time: on a CPU PyTorch's own gains nothing from 16 bits."""
    n, h, t, d = q.shape
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    out = torch.empty_like(q)
    heads = max(1, SCORES // max(t * t, 1))
    rows = max(1, min(t, SCORES // max(t, 1)))
    for i in range(0, n * h, heads):
        some = slice(i, i + heads)
        for j in range(0, t, rows):
            scores = torch.softmax(q[some, j : j + rows] @ k[some].transpose(1, 2), dim=-1)
            torch.bmm(scores, v[some], out=out[some, j : j + rows])
    return out.view(n, h, t, d)
