"""SwiGLU fast weights in Triton: reading them, their hidden features, and the first-order backward of both.

Everything that is more than a matrix product is fused into one; plain products with nothing around them go to the
vendor's library through `torch.bmm`. Only inputs are kept for the backward, which computes the hidden features again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import launch
from kernels.triton_linear import token_product
from kernels.triton_tiles import load_tile, tile_of


@triton.jit
def hidden_kernel(
    x, w0, w2, out, n, d, f, x_b, x_n, x_d, w_b, w_d, w_f,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out [b n f] = silu(x w0) * (x w2): both products in one walk over d."""
    batch, rows, cols = tile_of(n, f, BM, BN)
    gate = tl.zeros((BM, BN), tl.float32)
    up = tl.zeros((BM, BN), tl.float32)
    for start in range(0, d, BK):
        inner = start + tl.arange(0, BK)
        tokens = load_tile(x + batch * x_b, rows, inner, n, d, x_n, x_d)
        gate = tl.dot(tokens, load_tile(w0 + batch * w_b, inner, cols, d, f, w_d, w_f), gate, input_precision=PRECISION)
        up = tl.dot(tokens, load_tile(w2 + batch * w_b, inner, cols, d, f, w_d, w_f), up, input_precision=PRECISION)
    hidden = gate * tl.sigmoid(gate) * up
    inside = (rows < n)[:, None] & (cols < f)[None, :]
    tl.store(out + (batch * n + rows)[:, None] * f + cols[None, :], hidden.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gradient_kernel(
    x, v, w0, w1, w2, d_hidden, rates, sides, hidden, b, n, d, f, x_b, x_n, x_d, v_b, v_n, v_d, w_b, w_d, w_f,
    HAS_RATES: tl.constexpr, GIVEN: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients at gate and up -> sides [b n 2f], and the hidden features -> hidden [b n f]; times rates [3 b n].

    The gradient at the hidden features is v w1^T (w1 contiguous), or `d_hidden` when GIVEN.
    """
    batch, rows, cols = tile_of(n, f, BM, BN)
    gate = tl.zeros((BM, BN), tl.float32)
    up = tl.zeros((BM, BN), tl.float32)
    back = tl.zeros((BM, BN), tl.float32)
    for start in range(0, d, BK):
        inner = start + tl.arange(0, BK)
        tokens = load_tile(x + batch * x_b, rows, inner, n, d, x_n, x_d)
        gate = tl.dot(tokens, load_tile(w0 + batch * w_b, inner, cols, d, f, w_d, w_f), gate, input_precision=PRECISION)
        up = tl.dot(tokens, load_tile(w2 + batch * w_b, inner, cols, d, f, w_d, w_f), up, input_precision=PRECISION)
        if not GIVEN:
            values = load_tile(v + batch * v_b, rows, inner, n, d, v_n, v_d)
            down = load_tile(w1 + batch * f * d, inner, cols, d, f, 1, d)
            back = tl.dot(values, down, back, input_precision=PRECISION)
    inside = (rows < n)[:, None] & (cols < f)[None, :]
    at_token = batch * n + rows
    if GIVEN:
        back = tl.load(d_hidden + at_token[:, None] * f + cols[None, :], mask=inside, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    act = gate * sigmoid
    d_gate = back * up * sigmoid * (1 + gate * (1 - sigmoid))
    d_up = back * act
    features = act * up
    if HAS_RATES:
        d_gate *= tl.load(rates + at_token, mask=rows < n, other=0.0)[:, None]
        features *= tl.load(rates + b * n + at_token, mask=rows < n, other=0.0)[:, None]
        d_up *= tl.load(rates + 2 * b * n + at_token, mask=rows < n, other=0.0)[:, None]
    dtype = sides.dtype.element_ty
    left = sides + at_token[:, None] * (2 * f) + cols[None, :]
    tl.store(left, d_gate.to(dtype), mask=inside)
    tl.store(left + f, d_up.to(dtype), mask=inside)
    tl.store(hidden + at_token[:, None] * f + cols[None, :], features.to(dtype), mask=inside)


def hidden_features(w0: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    """Launch `hidden_kernel`: silu(x w0) * (x w2) [b n f]."""
    w0, w2 = w0.contiguous(), w2.contiguous()
    (b, n, d), f = x.shape, w0.shape[2]
    out = x.new_empty(b, n, f)
    launch(
        "hidden", hidden_kernel, lambda t: b * triton.cdiv(n, t.m) * triton.cdiv(f, t.n), x,
        x, w0, w2, out, n, d, f, *x.stride(), *w0.stride(),
    )  # fmt: skip
    return out


def gradient_pass(
    w0: Tensor,
    w1: Tensor | None,
    w2: Tensor,
    x: Tensor,
    v: Tensor | None,
    d_hidden: Tensor | None = None,
    rates: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Launch `gradient_kernel`: (gradients at gate and up [b n 2f], hidden features [b n f]), times rates [3 b n]."""
    w0, w2 = w0.contiguous(), w2.contiguous()
    (b, n, d), f = x.shape, w0.shape[2]
    sides, hidden = x.new_empty(b, n, 2 * f), x.new_empty(b, n, f)
    # Arguments that a variant does not read get any tensor of the right type.
    v = x if v is None else v
    launch(
        "gradient", gradient_kernel, lambda t: b * triton.cdiv(n, t.m) * triton.cdiv(f, t.n), x,
        x, v, w0, w0 if w1 is None else w1.contiguous(), w2,
        x if d_hidden is None else d_hidden.contiguous(), x if rates is None else rates, sides, hidden,
        b, n, d, f, *x.stride(), *v.stride(), *w0.stride(),
        HAS_RATES=rates is not None, GIVEN=d_hidden is not None,
    )  # fmt: skip
    return sides, hidden


def back_to_tokens(sides: Tensor, *weights: Tensor) -> Tensor:
    """Sum over the sides of side_i weight_i^T, with the sides side by side in one tensor [b n i*f] -> [b n d]."""
    return torch.bmm(sides, torch.cat(weights, dim=2).transpose(1, 2))


@torch.library.custom_op("nvs_kernels::swiglu_features", mutates_args=())
def swiglu_features(w0: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    """Hidden features of SwiGLU fast weights: silu(x w0) * (x w2), [b n f]."""
    return hidden_features(w0, w2, x)


@swiglu_features.register_fake
def _(w0: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], w0.shape[2])


@torch.library.custom_op("nvs_kernels::swiglu_features_backward", mutates_args=())
def swiglu_features_backward(w0: Tensor, w2: Tensor, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `swiglu_features` for w0, w2 and x."""
    f = w0.shape[2]
    sides, _ = gradient_pass(w0, None, w2, x, None, d_hidden=grad)
    d_w0, d_w2 = token_product(x, sides[..., :f]), token_product(x, sides[..., f:])
    return d_w0, d_w2, back_to_tokens(sides, w0, w2)


@swiglu_features_backward.register_fake
def _(w0: Tensor, w2: Tensor, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return w0.new_empty(w0.shape), w2.new_empty(w2.shape), x.new_empty(x.shape)


@torch.library.custom_op("nvs_kernels::apply_swiglu", mutates_args=())
def apply_swiglu(w0: Tensor, w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    """Read SwiGLU fast weights: (silu(x w0) * (x w2)) w1, [b n d]."""
    return torch.bmm(hidden_features(w0, w2, x), w1)


@apply_swiglu.register_fake
def _(w0: Tensor, w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op("nvs_kernels::apply_swiglu_backward", mutates_args=())
def apply_swiglu_backward(
    w0: Tensor, w1: Tensor, w2: Tensor, x: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of `apply_swiglu` for w0, w1, w2 and x: those of fast weights with values `grad` and rates 1."""
    f = w0.shape[2]
    sides, hidden = gradient_pass(w0, w1, w2, x, grad)
    d_w0, d_w2 = token_product(x, sides[..., :f]), token_product(x, sides[..., f:])
    return d_w0, token_product(hidden, grad), d_w2, back_to_tokens(sides, w0, w2)


@apply_swiglu_backward.register_fake
def _(w0: Tensor, w1: Tensor, w2: Tensor, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return w0.new_empty(w0.shape), w1.new_empty(w1.shape), w2.new_empty(w2.shape), x.new_empty(x.shape)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


swiglu_features.register_autograd(
    lambda ctx, grad: swiglu_features_backward(*ctx.saved_tensors, grad), setup_context=_save
)
apply_swiglu.register_autograd(lambda ctx, grad: apply_swiglu_backward(*ctx.saved_tensors, grad), setup_context=_save)
