"""States of linear attention in Triton: products over tokens, a^T b, with a rate for every token.

The result is small and the sum long, so the tokens are split over programs until the GPU is full. Parts are summed in
fp32 in a fixed order: the same input gives the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import choices, family_of, launch, processors
from kernels.triton_tiles import load_tile, tile_of

TOKENS_PER_PART = 1024
"""No part of a split sum has fewer tokens than this (a multiple of every inner tile)."""


@triton.jit
def token_product_kernel(
    a, b, rates, out, n, p, q, parts, part_tokens, a_b, a_n, a_p, b_b, b_n, b_q,
    HAS_RATES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out [b parts p q] = sum over the tokens of each part of rate a^T b; rates are [b n]."""
    index, rows, cols = tile_of(p, q, BM, BN)
    batch = index // parts
    first = (index % parts) * part_tokens
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(0, part_tokens, BK):
        tokens = first + step + tl.arange(0, BK)
        left = load_tile(a + batch * a_b, rows, tokens, p, n, a_p, a_n)
        if HAS_RATES:
            rate = tl.load(rates + batch * n + tokens, mask=tokens < n, other=0.0)
            left = (left.to(tl.float32) * rate[None, :]).to(left.dtype)
        right = load_tile(b + batch * b_b, tokens, cols, n, q, b_n, b_q)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    inside = (rows < p)[:, None] & (cols < q)[None, :]
    place = (index * p + rows)[:, None] * q + cols[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


def token_product(a: Tensor, b: Tensor, rates: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """Sum over tokens of rate a^T b: a [b n p], b [b n q], rates [b n] fp32 -> [b p q] in `dtype` (that of a)."""
    (batch, n, p), q = a.shape, b.shape[2]
    dtype = dtype or a.dtype
    first = choices("token_product", family_of(a.device), a.dtype == torch.float32)[0]
    tiles = batch * triton.cdiv(p, first.m) * triton.cdiv(q, first.n)
    parts = max(1, min(triton.cdiv(n, TOKENS_PER_PART), 2 * processors(a.device) // max(tiles, 1)))
    # Whole inner tiles only, so that no token is counted in two parts.
    part_tokens = triton.cdiv(triton.cdiv(n, parts), 64) * 64
    out = a.new_empty(batch, parts, p, q, dtype=dtype if parts == 1 else torch.float32)
    launch(
        "token_product", token_product_kernel,
        lambda t: batch * parts * triton.cdiv(p, t.m) * triton.cdiv(q, t.n), a,
        a, b, a if rates is None else rates.contiguous(), out, n, p, q, parts, part_tokens, *a.stride(), *b.stride(),
        HAS_RATES=rates is not None,
    )  # fmt: skip
    return out[:, 0] if parts == 1 else out.sum(dim=1).to(dtype)


@torch.library.custom_op("nvs_kernels::linear_state", mutates_args=())
def linear_state(k: Tensor, v: Tensor, lr: Tensor | None, dtype: torch.dtype) -> Tensor:
    """State of linear attention, sum_n lr_n k_n^T v_n, in `dtype`."""
    return token_product(k, v, None if lr is None else lr[..., 0].float(), dtype)


@linear_state.register_fake
def _(k: Tensor, v: Tensor, lr: Tensor | None, dtype: torch.dtype) -> Tensor:
    return k.new_empty(k.shape[0], k.shape[2], v.shape[2], dtype=dtype)


def _save(ctx, inputs, output) -> None:
    k, v, lr, _ = inputs
    ctx.save_for_backward(k, v, lr)


def _backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
    k, v, lr = ctx.saved_tensors
    grad = grad.to(k.dtype)
    d_k, d_v = torch.bmm(v, grad.transpose(1, 2)), torch.bmm(k, grad)
    if lr is None:
        return d_k, d_v, None, None
    d_lr = (k.float() * d_k.float()).sum(-1, keepdim=True).to(lr.dtype)
    rates = lr.to(k.dtype)
    return d_k * rates, d_v * rates, d_lr, None


linear_state.register_autograd(_backward, setup_context=_save)
