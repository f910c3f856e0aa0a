"""The reference for inference: the same numbers, with fewer tensors in memory and with the fastest products.

Without autograd nothing that the reference computes on the way is needed later, so results are written over operands.
On a CPU that saves more than memory: fresh memory costs a page fault every 4 KB. Used when no gradients are recorded.
Where oneDNN multiplies (`onednn.py`, large products on a CPU) numbers differ by rounding, else not by a bit.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import onednn
from kernels.checks import operand_dtype
from kernels.reference import NORM_EPS, UNIT_EPS, Coefficients, normalisation, restart_groups, step_coefficients

SMALLEST_BANDED = 256
"""Rows from which a symmetric product is computed in bands: small products cost more than they save."""


def apply_swiglu(w0: Tensor, w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    """`reference.apply_swiglu`."""
    dtype = operand_dtype(x)
    if not onednn.pays(x[:1], w0.shape[2], dtype):
        return F.silu(x @ w0, inplace=True).mul_(x @ w2) @ w1
    out = torch.empty_like(x, dtype=dtype)
    for i in range(len(x)):
        down, gate, up = (w[i].T.to(dtype) for w in (w1, w0, w2))
        tokens = x[i].to(dtype)
        hidden = onednn.linear(tokens, up, times=onednn.linear(tokens, gate, "silu"))
        out[i] = onednn.linear(hidden, down)
    return out


def fast_weight_gradients(
    w0: Tensor, w1: Tensor, w2: Tensor, k: Tensor, v: Tensor, lr0: Tensor, lr1: Tensor, lr2: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`reference.fast_weight_gradients`."""
    gate, up, d_hidden = _product(k, w0), _product(k, w2), _product(v, w1.transpose(1, 2))
    sigmoid, activated = torch.sigmoid(gate), F.silu(gate)
    g2 = (k * lr2.to(k.dtype)).transpose(1, 2) @ (d_hidden * activated)
    g1 = activated.mul_(up).mul_(lr1.to(k.dtype)).transpose(1, 2) @ v
    d_gate = d_hidden.mul_(up).mul_(sigmoid)
    # 1 + gate (1 - sigmoid), in the reference's order.
    d_gate.mul_(sigmoid.neg_().add_(1).mul_(gate).add_(1))
    return (k * lr0.to(k.dtype)).transpose(1, 2) @ d_gate, g1, g2


def orthogonalize(g: Tensor, steps: int, dtype: torch.dtype, coefficients: Coefficients) -> Tensor:
    """`reference.orthogonalize` in its standard form."""
    tall = g.shape[1] > g.shape[2]
    x = (g.transpose(1, 2) if tall else g).to(dtype)
    scale, eps = normalisation(coefficients)
    x = x / (x.norm(dim=(1, 2), keepdim=True) * scale + eps)
    large = operand_dtype(x) == dtype and onednn.pays(x[:1], x.shape[1], dtype)
    for a, b, c in step_coefficients(coefficients, steps):
        gram = _symmetric_product(x, x)
        z = _symmetric_product(c * gram, gram).add_(gram.mul_(b))
        if large:
            x = torch.baddbmm(x, z, x, beta=a)
        else:
            change = z @ x
            x = x.mul_(a).add_(change)
    return (x.transpose(1, 2) if tall else x).to(g.dtype)


def add_and_restore_norm(w: Tensor, g: Tensor) -> Tensor:
    """`reference.add_and_restore_norm`."""
    updated = w + g
    return (updated / (updated.norm(dim=1, keepdim=True) + NORM_EPS)).mul_(w.norm(dim=1, keepdim=True))


def orthogonalize_gram(g: Tensor, steps: int, dtype: torch.dtype, coefficients: Coefficients) -> Tensor:
    """`reference.orthogonalize` in its Gram form up to rounding, with symmetric products."""
    tall = g.shape[1] > g.shape[2]
    x = (g.transpose(1, 2) if tall else g).to(dtype)
    scale, eps = normalisation(coefficients)
    x = (x / (x.norm(dim=(1, 2), keepdim=True) * scale + eps)).to(dtype)
    for group in restart_groups(step_coefficients(coefficients, steps)):
        gram, q = _symmetric_product(x, x), None
        for i, (a, b, c) in enumerate(group):
            z = _symmetric_product(gram, gram).mul_(c).add_(gram, alpha=b)
            if q is None:
                q = z.clone()
                q.diagonal(dim1=1, dim2=2).add_(a)
            else:
                q = _symmetric_product(z, q).add_(q, alpha=a)
            if i + 1 < len(group):
                half = _symmetric_product(z, gram).add_(gram, alpha=a)
                gram = _symmetric_product(half, z).add_(half, alpha=a)
        x = x if q is None else q @ x
    return (x.transpose(1, 2) if tall else x).to(g.dtype)


def silu_unit(x: Tensor) -> Tensor:
    """`reference.silu_unit`."""
    y = F.silu(x)
    return y.div_(y.norm(dim=-1, keepdim=True).add_(UNIT_EPS))


def _product(x: Tensor, w: Tensor) -> Tensor:
    """x w for x [b n d] and w [b d f]."""
    dtype = operand_dtype(x)
    if not onednn.pays(x[:1], w.shape[2], dtype):
        return x @ w
    out = [onednn.linear(x[i].to(dtype), w[i].T.to(dtype)) for i in range(len(x))]
    return out[0][None] if len(out) == 1 else torch.stack(out)


def _symmetric_product(a: Tensor, b: Tensor, bands: int = 4) -> Tensor:
    """a b^T [b m m] where it is known to be symmetric: bands of rows from the diagonal on, then mirrored.

    Small matrices are multiplied whole.
    """
    m = a.shape[1]
    if m < SMALLEST_BANDED:
        return a @ b.transpose(1, 2)
    out = torch.empty(a.shape[0], m, m, dtype=a.dtype, device=a.device)
    if onednn.pays(a[:1], m, a.dtype):
        for i in range(len(a)):
            out[i] = onednn.symmetric_product(a[i], b[i])
        return out
    for i in range(bands):
        start, stop = i * m // bands, (i + 1) * m // bands
        out[:, start:stop, start:] = a[:, start:stop] @ b[:, start:].transpose(1, 2)
        out[:, stop:, start:stop] = out[:, start:stop, stop:].transpose(1, 2)
    return out
