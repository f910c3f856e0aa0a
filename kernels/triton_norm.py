"""Adding a step to fast weights and restoring their column norms in Triton, one launch forward and one backward.

A program owns some whole columns. Up to 1024 rows they stay in registers between the norm and the rescaling; longer
ones are read a second time, from the cache.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import on_device
from kernels.reference import NORM_EPS

WHOLE_ROWS = 1024
"""Columns up to this length are held in registers."""

WHOLE_TILE = (16, 16)
"""Columns and warps of a program that holds its columns whole."""

WALKING_TILE = (64, 32, 4)
"""Rows at a time, columns and warps of a program that walks down its columns."""


@triton.jit
def add_and_restore_norm_kernel(
    w, g, out, m, n, EPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WHOLE: tl.constexpr
):
    """out = (w + g) |w| / (|w + g| + EPS) for every column of contiguous w, g [b m n]."""
    blocks = tl.cdiv(n, BN)
    # One matrix has fewer than 2^31 numbers: offsets within it stay 32 bit and take half the registers.
    at = (tl.program_id(0) // blocks).to(tl.int64) * m * n
    w, g, out = w + at, g + at, out + at
    cols = (tl.program_id(0) % blocks) * BN + tl.arange(0, BN)
    rows = tl.arange(0, BM)
    w_square = tl.zeros((BN,), tl.float32)
    u_square = tl.zeros((BN,), tl.float32)
    if WHOLE:
        inside = (rows < m)[:, None] & (cols < n)[None, :]
        place = rows[:, None] * n + cols[None, :]
        old = tl.load(w + place, mask=inside, other=0.0).to(tl.float32)
        new = old + tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
        scale = tl.sqrt(tl.sum(old * old, 0)) / (tl.sqrt(tl.sum(new * new, 0)) + EPS)
        tl.store(out + place, (new * scale[None, :]).to(out.dtype.element_ty), mask=inside)
    else:
        for start in range(0, m, BM):
            inside = (start + rows < m)[:, None] & (cols < n)[None, :]
            place = (start + rows)[:, None] * n + cols[None, :]
            old = tl.load(w + place, mask=inside, other=0.0).to(tl.float32)
            new = old + tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
            w_square += tl.sum(old * old, 0)
            u_square += tl.sum(new * new, 0)
        scale = tl.sqrt(w_square) / (tl.sqrt(u_square) + EPS)
        for start in range(0, m, BM):
            inside = (start + rows < m)[:, None] & (cols < n)[None, :]
            place = (start + rows)[:, None] * n + cols[None, :]
            old = tl.load(w + place, mask=inside, other=0.0).to(tl.float32)
            new = old + tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
            tl.store(out + place, (new * scale[None, :]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def restore_norm_backward_kernel(w, g, grad, out, m, n, EPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Gradient for w + g =: u, with |w| a constant: |w| (grad / s - u (grad . u) / (|u| s^2)), s = |u| + EPS."""
    blocks = tl.cdiv(n, BN)
    at = (tl.program_id(0) // blocks).to(tl.int64) * m * n
    w, g, grad, out = w + at, g + at, grad + at, out + at
    cols = (tl.program_id(0) % blocks) * BN + tl.arange(0, BN)
    rows = tl.arange(0, BM)
    w_square = tl.zeros((BN,), tl.float32)
    u_square = tl.zeros((BN,), tl.float32)
    along = tl.zeros((BN,), tl.float32)
    for start in range(0, m, BM):
        inside = (start + rows < m)[:, None] & (cols < n)[None, :]
        place = (start + rows)[:, None] * n + cols[None, :]
        old = tl.load(w + place, mask=inside, other=0.0).to(tl.float32)
        new = old + tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
        d_out = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        w_square += tl.sum(old * old, 0)
        u_square += tl.sum(new * new, 0)
        along += tl.sum(d_out * new, 0)
    length = tl.sqrt(u_square)
    scale = tl.sqrt(w_square) / (length + EPS)
    # A column of zeros has no direction: its norm counts as a constant.
    share = tl.where(length > 0, along / (tl.maximum(length, 1e-30) * (length + EPS)), 0.0)
    for start in range(0, m, BM):
        inside = (start + rows < m)[:, None] & (cols < n)[None, :]
        place = (start + rows)[:, None] * n + cols[None, :]
        new = tl.load(w + place, mask=inside, other=0.0).to(tl.float32)
        new += tl.load(g + place, mask=inside, other=0.0).to(tl.float32)
        d_out = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        result = scale[None, :] * (d_out - new * share[None, :])
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@torch.library.custom_op("nvs_kernels::add_and_restore_norm", mutates_args=())
def add_and_restore_norm(w: Tensor, g: Tensor) -> Tensor:
    """w + g with every column (over dim 1) brought back to the norm that it has in w."""
    out = torch.empty(w.shape, dtype=torch.result_type(w, g), device=w.device)
    if w.shape[1] <= WHOLE_ROWS:
        _launch(add_and_restore_norm_kernel, (w, g), out, triton.next_power_of_2(w.shape[1]), *WHOLE_TILE, WHOLE=True)
    else:
        _launch(add_and_restore_norm_kernel, (w, g), out, *WALKING_TILE, WHOLE=False)
    return out


@add_and_restore_norm.register_fake
def _(w: Tensor, g: Tensor) -> Tensor:
    return torch.empty(w.shape, dtype=torch.result_type(w, g), device=w.device)


@torch.library.custom_op("nvs_kernels::add_and_restore_norm_backward", mutates_args=())
def add_and_restore_norm_backward(w: Tensor, g: Tensor, grad: Tensor) -> Tensor:
    """Gradient of `add_and_restore_norm` for w and for g: they are the same."""
    out = torch.empty(w.shape, dtype=grad.dtype, device=w.device)
    _launch(restore_norm_backward_kernel, (w, g, grad), out, *WALKING_TILE)
    return out


@add_and_restore_norm_backward.register_fake
def _(w: Tensor, g: Tensor, grad: Tensor) -> Tensor:
    return torch.empty(w.shape, dtype=grad.dtype, device=w.device)


def _launch(
    kernel: Any, inputs: tuple[Tensor, ...], out: Tensor, rows: int, columns: int, warps: int, **constants: bool
) -> None:
    b, m, n = out.shape
    programs = b * triton.cdiv(n, columns)
    if programs * m == 0:
        return
    inputs = tuple(x.contiguous() for x in inputs)
    with on_device(out):
        kernel[(programs,)](*inputs, out, m, n, EPS=NORM_EPS, BM=rows, BN=columns, num_warps=warps, **constants)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
    w, g = ctx.saved_tensors
    both = add_and_restore_norm_backward(w, g, grad)
    return both.to(w.dtype), both.to(g.dtype)


add_and_restore_norm.register_autograd(_backward, setup_context=_save)
