"""Newton-Schulz iteration on a CPU with a backward pass of its own.

Matrices are few and small, so what counts is the number of passes over them. Autograd's backward pass takes about 25 a
step; here it is six, because the Gram matrix and what is made of it are symmetric.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.backend import current_backend
from kernels.reference import Coefficients, normalisation, step_coefficients

Rows = tuple[tuple[float, float, float], ...]
"""Coefficients a, b, c of every step."""


def runs(g: Tensor, dtype: torch.dtype) -> bool:
    """Whether this file is for such a tensor: on a CPU, uncompiled, and not under autocast to another precision.

    16 bits without autocast are left to plain PyTorch: it rounds where the published code does, and with an error of a
    few percent that decides which of the two agrees with recordings.
    """
    if current_backend() != "auto" or g.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    if torch.is_autocast_enabled("cpu"):
        return dtype == torch.get_autocast_dtype("cpu")
    return dtype.itemsize > 2


def orthogonalize(
    g: Float[Tensor, "b m n"], steps: int, dtype: torch.dtype, coefficients: Coefficients
) -> Float[Tensor, "b m n"]:
    """`reference.orthogonalize` in its standard form, up to rounding; gradients can be taken once."""
    tall = g.shape[1] > g.shape[2]
    x = (g.transpose(1, 2) if tall else g).to(dtype)
    scale, eps = normalisation(coefficients)
    x = x / (x.norm(dim=(1, 2), keepdim=True) * scale + eps)
    x = _Iterate.apply(x, step_coefficients(coefficients, steps))
    return (x.transpose(1, 2) if tall else x).to(g.dtype)


class _Iterate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Rows) -> Tensor:
        kept = []
        for a, b, c in rows:
            gram = x @ x.transpose(1, 2)
            p = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
            kept += [x, gram, p]
            x = torch.baddbmm(x, p, x, beta=a)
        ctx.save_for_backward(*kept)
        ctx.rows = rows
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        """With y = a x + P x and P = b G + c G G: dP = dy x^T, and G's symmetric part of it, S = dP + dP^T, gives
        dx = a dy + P dy + (b S + c (S G + G S)) x."""
        kept = ctx.saved_tensors
        for i, (a, b, c) in reversed(list(enumerate(ctx.rows))):
            x, gram, p = kept[3 * i : 3 * i + 3]
            s = d @ x.transpose(1, 2)
            s = s + s.transpose(1, 2)
            half = torch.baddbmm(s, s, gram, beta=b / 2, alpha=c)
            d = torch.baddbmm(torch.baddbmm(d, p, d, beta=a), half + half.transpose(1, 2), x)
        return d, None
