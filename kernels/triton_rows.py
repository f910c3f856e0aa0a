"""Small operators on rows in Triton: silu with unit length (queries, keys) and the root-mean-square norm (read-outs).

A program holds whole rows in registers: one reading and one writing where plain PyTorch needs four passes and a tensor
of every step. Only the input is kept for the backward.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import on_device, processors
from kernels.reference import UNIT_EPS

HELD = 4096
"""Numbers of one tensor that a program holds at a time."""

WARPS = 4


@triton.jit
def silu_unit_kernel(x, out, count, n, d, x_b, x_n, EPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """out [b n d] = y / (|y| + EPS) with y = silu(x), for each of the count = b n rows."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    inside = (rows < count)[:, None] & (cols < d)[None, :]
    start = (rows // n).to(tl.int64) * x_b + (rows % n).to(tl.int64) * x_n
    y = tl.load(x + start[:, None] + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    y = y * tl.sigmoid(y)
    length = tl.sqrt(tl.sum(y * y, 1))
    place = rows.to(tl.int64)[:, None] * d + cols[None, :]
    tl.store(out + place, (y / (length + EPS)[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def silu_unit_backward_kernel(
    x, grad, out, count, n, d, x_b, x_n, EPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    """Gradient for x: silu'(x) (grad - y (grad . y) / (|y| s)) / s with s = |y| + EPS; grad is contiguous."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    inside = (rows < count)[:, None] & (cols < d)[None, :]
    start = (rows // n).to(tl.int64) * x_b + (rows % n).to(tl.int64) * x_n
    place = rows.to(tl.int64)[:, None] * d + cols[None, :]
    raw = tl.load(x + start[:, None] + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    above = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(raw)
    y = raw * sigmoid
    length = tl.sqrt(tl.sum(y * y, 1))
    bottom = length + EPS
    # A row of zeros has no direction: its length counts as a constant.
    along = tl.where(length > 0, tl.sum(above * y, 1) / (tl.maximum(length, 1e-30) * bottom), 0.0)
    d_y = (above - y * along[:, None]) / bottom[:, None]
    result = d_y * sigmoid * (1 + raw * (1 - sigmoid))
    tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm_kernel(x, weight, out, count, n, d, x_b, x_n, eps, BM: tl.constexpr, BN: tl.constexpr):
    """out [b n d] = weight x / sqrt(mean(x^2) + eps) for each of the count = b n rows."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, BN)
    inside = (rows < count)[:, None] & (cols < d)[None, :]
    start = (rows // n).to(tl.int64) * x_b + (rows % n).to(tl.int64) * x_n
    value = tl.load(x + start[:, None] + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + cols, mask=cols < d, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 1) / d + eps)
    place = rows.to(tl.int64)[:, None] * d + cols[None, :]
    tl.store(out + place, (value * scale[:, None] * gain[None, :]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm_backward_kernel(
    x, weight, grad, out, partial, count, n, d, x_b, x_n, eps, blocks, BM: tl.constexpr, BN: tl.constexpr
):
    """Gradient for x -> out, and this program's share of that for weight -> partial [programs d]."""
    cols = tl.arange(0, BN)
    gain = tl.load(weight + cols, mask=cols < d, other=0.0).to(tl.float32)
    share = tl.zeros((BN,), tl.float32)
    for block in range(0, blocks):
        rows = (tl.program_id(0) * blocks + block) * BM + tl.arange(0, BM)
        inside = (rows < count)[:, None] & (cols < d)[None, :]
        start = (rows // n).to(tl.int64) * x_b + (rows % n).to(tl.int64) * x_n
        place = rows.to(tl.int64)[:, None] * d + cols[None, :]
        value = tl.load(x + start[:, None] + cols[None, :], mask=inside, other=0.0).to(tl.float32)
        above = tl.load(grad + place, mask=inside, other=0.0).to(tl.float32)
        scale = 1 / tl.sqrt(tl.sum(value * value, 1) / d + eps)
        share += tl.sum(above * value * scale[:, None], 0)
        above *= gain[None, :]
        along = tl.sum(above * value, 1) / d * scale * scale
        result = scale[:, None] * (above - value * along[:, None])
        tl.store(out + place, result.to(out.dtype.element_ty), mask=inside)
    tl.store(partial + tl.program_id(0) * d + cols, share, mask=cols < d)


@torch.library.custom_op("nvs_kernels::silu_unit", mutates_args=())
def silu_unit(x: Tensor) -> Tensor:
    """silu(x) with every row brought to length 1, [b n d]."""
    x, out = _adjacent(x), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    height, width = rows_held(x.shape[2])
    count = x.shape[0] * x.shape[1]
    if out.numel():
        with on_device(x):
            silu_unit_kernel[(triton.cdiv(count, height),)](
                x, out, count, *x.shape[1:], *x.stride()[:2], EPS=UNIT_EPS, BM=height, BN=width, num_warps=WARPS
            )
    return out


@silu_unit.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("nvs_kernels::silu_unit_backward", mutates_args=())
def silu_unit_backward(x: Tensor, grad: Tensor) -> Tensor:
    """Gradient of `silu_unit` for x."""
    x, grad, out = _adjacent(x), grad.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    height, width = rows_held(x.shape[2])
    count = x.shape[0] * x.shape[1]
    if out.numel():
        with on_device(x):
            silu_unit_backward_kernel[(triton.cdiv(count, height),)](
                x, grad, out, count, *x.shape[1:], *x.stride()[:2], EPS=UNIT_EPS, BM=height, BN=width, num_warps=WARPS
            )
    return out


@silu_unit_backward.register_fake
def _(x: Tensor, grad: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("nvs_kernels::rms_norm", mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """weight x / sqrt(mean(x^2) + eps) for every row, [b n d] in `dtype`."""
    x, out = _adjacent(x), torch.empty(x.shape, dtype=dtype, device=x.device)
    height, width = rows_held(x.shape[2])
    count = x.shape[0] * x.shape[1]
    if out.numel():
        with on_device(x):
            rms_norm_kernel[(triton.cdiv(count, height),)](
                x, weight.contiguous(), out, count, *x.shape[1:], *x.stride()[:2], eps,
                BM=height, BN=width, num_warps=WARPS,
            )  # fmt: skip
    return out


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


@torch.library.custom_op("nvs_kernels::rms_norm_backward", mutates_args=())
def rms_norm_backward(x: Tensor, weight: Tensor, grad: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Gradients of `rms_norm` for x and weight."""
    x, out = _adjacent(x), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    height, width = rows_held(x.shape[2])
    count = x.shape[0] * x.shape[1]
    if not x.numel():
        return out, torch.zeros_like(weight)
    # Few programs, so that the shares of the gain's gradient that remain to be added are few.
    blocks = triton.cdiv(count, height * 4 * processors(x.device))
    programs = triton.cdiv(count, height * blocks)
    partial = torch.empty(programs, x.shape[2], dtype=torch.float32, device=x.device)
    with on_device(x):
        rms_norm_backward_kernel[(programs,)](
            x, weight.contiguous(), grad.contiguous(), out, partial, count, *x.shape[1:], *x.stride()[:2], eps, blocks,
            BM=height, BN=width, num_warps=WARPS,
        )  # fmt: skip
    return out, partial.sum(dim=0).to(weight.dtype)


@rms_norm_backward.register_fake
def _(x: Tensor, weight: Tensor, grad: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), torch.empty_like(weight)


def rows_held(width: int) -> tuple[int, int]:
    """Rows at a time and padded width of a program for rows of this width."""
    padded = triton.next_power_of_2(max(width, 1))
    return max(1, HELD // padded), padded


def _adjacent(x: Tensor) -> Tensor:
    """The tensor itself if the numbers of its rows lie side by side, else a copy."""
    return x if x.stride(2) == 1 else x.contiguous()


def _save_input(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _save_norm(ctx, inputs, output) -> None:
    x, weight, ctx.eps, _ = inputs
    ctx.save_for_backward(x, weight)


silu_unit.register_autograd(lambda ctx, grad: silu_unit_backward(*ctx.saved_tensors, grad), setup_context=_save_input)
rms_norm.register_autograd(
    lambda ctx, grad: (*rms_norm_backward(*ctx.saved_tensors, grad, ctx.eps), None, None), setup_context=_save_norm
)
