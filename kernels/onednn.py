"""Matrix products by oneDNN on a CPU, with what follows them in the same pass.

For float32 PyTorch takes its BLAS (MKL), which on some CPUs is a tenth to a fifth slower, and activations cost a pass
over memory each. These are the operators that `torch.compile` puts into the code that it makes; where they are missing
or do not pay, `pays` says no and plain PyTorch does the same, up to rounding.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

Activation = Literal["none", "silu", "gelu"]

NAMES = {"none": ("none", ""), "silu": ("swish", ""), "gelu": ("gelu", "none")}
"""What oneDNN calls an activation, and which variant of it is meant."""
SMALLEST = 2**24
"""Multiply-adds below which a call costs more than it saves."""


def pays(x: Tensor, rows: int, dtype: torch.dtype) -> bool:
    """Whether oneDNN should multiply the last axis of `x` by a matrix with so many rows; never while compiling."""
    if torch.compiler.is_compiling() or x.device.type != "cpu" or not _runs(dtype):
        return False
    return x.numel() * rows >= SMALLEST


def linear(
    x: Float[Tensor, "*b k"],
    weight: Float[Tensor, "m k"],
    then: Activation = "none",
    times: Float[Tensor, "*b m"] | None = None,
) -> Float[Tensor, "*b m"]:
    """An activation of x weight^T, or x weight^T multiplied by `times`; all of one dtype."""
    if not weight.is_contiguous() and not weight.T.is_contiguous():
        weight = weight.contiguous()  # oneDNN has no fast code for other strides
    if times is not None:
        return torch.ops.mkldnn._linear_pointwise.binary(x, times, weight, None, "mul")
    name, variant = NAMES[then]
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, name, [], variant)


def symmetric_product(a: Float[Tensor, "m k"], b: Float[Tensor, "m k"], bands: int = 4) -> Float[Tensor, "m m"]:
    """a b^T where it is known to be symmetric: bands of rows from the diagonal on, then mirrored."""
    m = a.shape[0]
    out = torch.empty(m, m, dtype=a.dtype)
    for i in range(bands):
        start, stop = i * m // bands, (i + 1) * m // bands
        out[start:stop, start:] = linear(a[start:stop], b[start:])
        out[stop:, start:stop] = out[start:stop, stop:].T
    return out


@functools.cache
def _runs(dtype: torch.dtype) -> bool:
    """Whether oneDNN is there and computes in this precision on this CPU."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32
