"""Closed-form fast-weight gradients in Triton, with their own backward (the second order that training needs).

Forward: one pass over the tokens makes everything before the three gradient products, rates included. Backward: one
pass makes everything from its inputs again; nothing of size tokens x hidden width is kept between the two.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import choices, family_of, launch
from kernels.triton_linear import token_product
from kernels.triton_swiglu import back_to_tokens, gradient_pass
from kernels.triton_tiles import load_tile, tile_of


@triton.jit
def second_order_kernel(
    k, v, w0, w1, w2, u0, u1, u2, rates, key_side, value_side, d_rates, b, n, d, f, tiles_f,
    k_b, k_n, k_d, v_b, v_n, v_d,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Backward of g0 = k^T (lr0 a), g1 = (lr1 h)^T v, g2 = k^T (lr2 c) before the last products.

    With gate = k w0, up = k w2, e = v w1^T: a = e up silu'(gate), c = e silu(gate), h = silu(gate) up; u0 u1 u2 are the
    upstream gradients of g0 g1 g2. Writes d gate, d up, lr0 a, lr2 c -> key_side [b n 4f]; d e, lr1 h -> value_side
    [b n 2f]; this tile's share of the gradients of the rates -> d_rates [3 b tiles_f n]. Weights are contiguous.
    """
    batch, rows, cols = tile_of(n, f, BM, BN)
    gate = tl.zeros((BM, BN), tl.float32)
    up = tl.zeros((BM, BN), tl.float32)
    e = tl.zeros((BM, BN), tl.float32)
    p0 = tl.zeros((BM, BN), tl.float32)
    p1 = tl.zeros((BM, BN), tl.float32)
    p2 = tl.zeros((BM, BN), tl.float32)
    at_matrix = batch * d * f
    for start in range(0, d, BK):
        inner = start + tl.arange(0, BK)
        keys = load_tile(k + batch * k_b, rows, inner, n, d, k_n, k_d)
        gate = tl.dot(keys, load_tile(w0 + at_matrix, inner, cols, d, f, f, 1), gate, input_precision=PRECISION)
        up = tl.dot(keys, load_tile(w2 + at_matrix, inner, cols, d, f, f, 1), up, input_precision=PRECISION)
        p0 = tl.dot(keys, load_tile(u0 + at_matrix, inner, cols, d, f, f, 1), p0, input_precision=PRECISION)
        p2 = tl.dot(keys, load_tile(u2 + at_matrix, inner, cols, d, f, f, 1), p2, input_precision=PRECISION)
        values = load_tile(v + batch * v_b, rows, inner, n, d, v_n, v_d)
        e = tl.dot(values, load_tile(w1 + at_matrix, inner, cols, d, f, 1, d), e, input_precision=PRECISION)
        p1 = tl.dot(values, load_tile(u1 + at_matrix, inner, cols, d, f, 1, d), p1, input_precision=PRECISION)

    sigmoid = tl.sigmoid(gate)
    act = gate * sigmoid
    slope = sigmoid * (1 + gate * (1 - sigmoid))
    curve = sigmoid * (1 - sigmoid) * (2 + gate * (1 - 2 * sigmoid))
    at_token = batch * n + rows
    lr0 = tl.load(rates + at_token, mask=rows < n, other=0.0)[:, None]
    lr1 = tl.load(rates + b * n + at_token, mask=rows < n, other=0.0)[:, None]
    lr2 = tl.load(rates + 2 * b * n + at_token, mask=rows < n, other=0.0)[:, None]

    # Columns beyond f are zero in every product, so they add nothing here.
    partial = d_rates + (batch * tiles_f + tl.min(cols, 0) // BN) * n + rows
    tl.store(partial, tl.sum(p0 * e * up * slope, 1), mask=rows < n)
    tl.store(partial + b * tiles_f * n, tl.sum(p1 * act * up, 1), mask=rows < n)
    tl.store(partial + 2 * b * tiles_f * n, tl.sum(p2 * e * act, 1), mask=rows < n)

    d_a, d_h, d_c = lr0 * p0, lr1 * p1, lr2 * p2
    inside = (rows < n)[:, None] & (cols < f)[None, :]
    dtype = key_side.dtype.element_ty
    left = key_side + at_token[:, None] * (4 * f) + cols[None, :]
    d_gate = d_a * e * up * curve + d_c * e * slope + d_h * up * slope
    tl.store(left, d_gate.to(dtype), mask=inside)
    tl.store(left + f, (d_a * e * slope + d_h * act).to(dtype), mask=inside)
    tl.store(left + 2 * f, (lr0 * e * up * slope).to(dtype), mask=inside)
    tl.store(left + 3 * f, (lr2 * e * act).to(dtype), mask=inside)
    right = value_side + at_token[:, None] * (2 * f) + cols[None, :]
    tl.store(right, (d_a * up * slope + d_c * act).to(dtype), mask=inside)
    tl.store(right + f, (lr1 * act * up).to(dtype), mask=inside)


@torch.library.custom_op("nvs_kernels::fast_weight_gradients", mutates_args=())
def fast_weight_gradients(
    w0: Tensor,
    w1: Tensor,
    w2: Tensor,
    k: Tensor,
    v: Tensor,
    lr0: Tensor,
    lr1: Tensor,
    lr2: Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Ascent direction of sum_n lr_n <f(k_n), v_n> for w0, w1 and w2, in `dtype`."""
    f = w0.shape[2]
    sides, hidden = gradient_pass(w0, w1, w2, k, v, rates=_rates(lr0, lr1, lr2))
    g0, g2 = (token_product(k, side, dtype=dtype) for side in (sides[..., :f], sides[..., f:]))
    return g0, token_product(hidden, v, dtype=dtype), g2


@fast_weight_gradients.register_fake
def _(w0, w1, w2, k, v, lr0, lr1, lr2, dtype):
    return tuple(w.new_empty(w.shape, dtype=dtype) for w in (w0, w1, w2))


@torch.library.custom_op("nvs_kernels::fast_weight_gradients_backward", mutates_args=())
def fast_weight_gradients_backward(
    w0: Tensor,
    w1: Tensor,
    w2: Tensor,
    k: Tensor,
    v: Tensor,
    lr0: Tensor,
    lr1: Tensor,
    lr2: Tensor,
    u0: Tensor,
    u1: Tensor,
    u2: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `fast_weight_gradients` for all eight inputs, from those of its three results (u0 u1 u2)."""
    w0, w1, w2, u0, u1, u2 = (w.to(k.dtype).contiguous() for w in (w0, w1, w2, u0, u1, u2))
    (b, n, d), f = k.shape, w0.shape[2]
    key_side, value_side = k.new_empty(b, n, 4 * f), k.new_empty(b, n, 2 * f)
    narrowest = min(t.n for t in choices("second_order", family_of(k.device), k.dtype == torch.float32))
    d_rates = torch.zeros(3, b, triton.cdiv(f, narrowest), n, dtype=torch.float32, device=k.device)
    launch(
        "second_order", second_order_kernel, lambda t: b * triton.cdiv(n, t.m) * triton.cdiv(f, t.n), k,
        k, v, w0, w1, w2, u0, u1, u2, _rates(lr0, lr1, lr2), key_side, value_side, d_rates,
        b, n, d, f, d_rates.shape[2], *k.stride(), *v.stride(),
    )  # fmt: skip
    d_k = back_to_tokens(key_side, w0, w2, u0, u2)
    d_v = torch.bmm(value_side, torch.cat((w1, u1), dim=1))
    d_w0, d_w2 = token_product(k, key_side[..., :f]), token_product(k, key_side[..., f : 2 * f])
    d_w1 = token_product(value_side[..., :f], v)
    d_lr0, d_lr1, d_lr2 = d_rates.sum(dim=2)[..., None]
    # Results of an operator may not share memory.
    return (
        *(d_w0, d_w1, d_w2, d_k, d_v),
        *(d_lr0.to(lr0.dtype, copy=True), d_lr1.to(lr1.dtype, copy=True), d_lr2.to(lr2.dtype, copy=True)),
    )


@fast_weight_gradients_backward.register_fake
def _(w0, w1, w2, k, v, lr0, lr1, lr2, u0, u1, u2):
    return tuple(x.new_empty(x.shape) for x in (w0, w1, w2, k, v, lr0, lr1, lr2))


def _rates(*rates: Tensor) -> Tensor:
    return torch.stack([lr[..., 0].float() for lr in rates])


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs[:8])


def _backward(ctx, u0: Tensor, u1: Tensor, u2: Tensor) -> tuple[Tensor | None, ...]:
    return (*fast_weight_gradients_backward(*ctx.saved_tensors, u0, u1, u2), None)


fast_weight_gradients.register_autograd(_backward, setup_context=_save)
