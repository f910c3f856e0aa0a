"""The public operators: shapes, devices and dtypes are checked here, then the chosen backend runs.

The formulas stand in `reference.py`, plain PyTorch that runs on any device. `auto` runs Triton for float32, bfloat16
and float16 tensors on a GPU, else the reference, in its lean form if no gradients are recorded; `triton` runs Triton
or raises. The files with Triton code are imported when they are first needed. Under autocast the operands of matrix
products are cast to its dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor

from kernels import lean, newton_schulz, prefix, reference
from kernels.backend import BackendError, current_backend, runs_lean, triton_runs
from kernels.checks import check_alike, check_floating, check_shape, operand_dtype
from kernels.launch import interpreting


def apply_swiglu(
    w0: Float[Tensor, "b d f"], w1: Float[Tensor, "b f d"], w2: Float[Tensor, "b d f"], x: Float[Tensor, "b n d"]
) -> Float[Tensor, "b n d"]:
    """Read SwiGLU fast weights: (silu(x w0) * (x w2)) w1."""
    _check_fast_weights(w0, w1, w2)
    check_shape("x", x, (w0.shape[0], None, w0.shape[1]))
    check_alike(w0=w0, w1=w1, w2=w2, x=x)
    dtype = operand_dtype(x)
    if triton_runs(dtype, w0, w1, w2, x):
        from kernels import triton_swiglu

        return triton_swiglu.apply_swiglu(w0.to(dtype), w1.to(dtype), w2.to(dtype), x.to(dtype))
    return (lean if runs_lean() else reference).apply_swiglu(w0, w1, w2, x)


def swiglu_features(
    w0: Float[Tensor, "b d f"], w2: Float[Tensor, "b d f"], x: Float[Tensor, "b n d"]
) -> Float[Tensor, "b n f"]:
    """Hidden features of SwiGLU fast weights, silu(x w0) * (x w2): the kernel of its linear-attention form."""
    check_shape("w0", w0, (None, None, None))
    check_shape("w2", w2, tuple(w0.shape))
    check_shape("x", x, (w0.shape[0], None, w0.shape[1]))
    check_alike(w0=w0, w2=w2, x=x)
    dtype = operand_dtype(x)
    if triton_runs(dtype, w0, w2, x):
        from kernels import triton_swiglu

        return triton_swiglu.swiglu_features(w0.to(dtype), w2.to(dtype), x.to(dtype))
    return reference.swiglu_features(w0, w2, x)


def fast_weight_gradients(
    w0: Float[Tensor, "b d f"],
    w1: Float[Tensor, "b f d"],
    w2: Float[Tensor, "b d f"],
    k: Float[Tensor, "b n d"],
    v: Float[Tensor, "b n d"],
    lr0: Float[Tensor, "b n 1"],
    lr1: Float[Tensor, "b n 1"],
    lr2: Float[Tensor, "b n 1"],
) -> tuple[Float[Tensor, "b d f"], Float[Tensor, "b f d"], Float[Tensor, "b d f"]]:
    """Ascent direction of sum_n lr_n <f(k_n), v_n> for w0, w1 and w2, in their dtype.

    Gradients of token slices add up to that of all tokens. If w1 alone is wanted, use `last_weight_gradient`.
    """
    _check_fast_weights(w0, w1, w2)
    check_shape("k", k, (w0.shape[0], None, w0.shape[1]))
    check_shape("v", v, tuple(k.shape))
    for name, lr in (("lr0", lr0), ("lr1", lr1), ("lr2", lr2)):
        check_shape(name, lr, (k.shape[0], k.shape[1], 1))
    check_alike(w0=w0, w1=w1, w2=w2, k=k, v=v)
    dtype = operand_dtype(k)
    if triton_runs(dtype, w0, w1, w2, k, v, lr0, lr1, lr2):
        from kernels import triton_fast_weights

        operands = (x.to(dtype) for x in (w0, w1, w2, k, v))
        return triton_fast_weights.fast_weight_gradients(*operands, lr0, lr1, lr2, w0.dtype)
    plain = lean if runs_lean() else reference
    g0, g1, g2 = plain.fast_weight_gradients(w0, w1, w2, k, v, lr0, lr1, lr2)
    return g0.to(w0.dtype), g1.to(w1.dtype), g2.to(w2.dtype)


def last_weight_gradient(
    w0: Float[Tensor, "b d f"],
    w2: Float[Tensor, "b d f"],
    k: Float[Tensor, "b n d"],
    v: Float[Tensor, "b n d"],
    lr1: Float[Tensor, "b n 1"],
) -> Float[Tensor, "b f d"]:
    """The gradient for w1 of `fast_weight_gradients` alone: it does not depend on w1 (variants that update only w1)."""
    return linear_state(swiglu_features(w0, w2, k), v, lr1)


def orthogonalize(
    g: Float[Tensor, "b m n"],
    steps: int = 5,
    dtype: torch.dtype = torch.bfloat16,
    coefficients: reference.Coefficients = "muon5",
    form: reference.Form = "standard",
) -> Float[Tensor, "b m n"]:
    """Bring the singular values of each matrix near 1 by `steps` Newton-Schulz iterations run in `dtype` (Muon).

    Form "gram" computes the same polynomial on the small Gram matrix: fewer products when one side is longer.
    """
    check_shape("g", g, (None, None, None))
    check_floating(g=g)
    if steps < 0:
        raise ValueError(f"steps must be 0 or more, got {steps}")
    for name, value, known in (("coefficients", coefficients, reference.Coefficients), ("form", form, reference.Form)):
        if value not in get_args(known):
            raise ValueError(f"{name} is {value!r}, expected one of {', '.join(get_args(known))}")
    if triton_runs(dtype, g):
        from kernels import triton_orthogonalize

        return triton_orthogonalize.orthogonalize(g, steps, dtype, coefficients, form)
    if runs_lean():
        return (lean.orthogonalize_gram if form == "gram" else lean.orthogonalize)(g, steps, dtype, coefficients)
    if form == "standard" and newton_schulz.runs(g, dtype):
        return newton_schulz.orthogonalize(g, steps, dtype, coefficients)
    return reference.orthogonalize(g, steps, dtype, coefficients, form)


def orthogonalize_together(
    gradients: Sequence[Float[Tensor, "_ _ _"]],
    steps: int = 5,
    dtype: torch.dtype = torch.bfloat16,
    coefficients: reference.Coefficients = "muon5",
    form: reference.Form = "standard",
) -> tuple[Float[Tensor, "_ _ _"], ...]:
    """`orthogonalize` of batches of m x n and n x m matrices: as one batch with a third of the launches.

    Large matrices on a CPU, where launches cost little beside them, go one after the other: that needs less memory.
    """
    for i, g in enumerate(gradients):
        check_shape(f"gradients[{i}]", g, (None, None, None))
        if sorted(g.shape[1:]) != sorted(gradients[0].shape[1:]):
            raise ValueError(
                f"gradients[{i}] holds {g.shape[1]} x {g.shape[2]} matrices, expected the sides of gradients[0], "
                f"{gradients[0].shape[1]} and {gradients[0].shape[2]}"
            )
    large = bool(gradients) and gradients[0].device.type == "cpu" and gradients[0][0].numel() > 2**16
    if large and not interpreting():
        return tuple(orthogonalize(g, steps, dtype, coefficients, form) for g in gradients)
    tall = [g.shape[1] > g.shape[2] for g in gradients]
    batch = torch.cat([g.transpose(1, 2) if t else g for g, t in zip(gradients, tall, strict=True)])
    parts = orthogonalize(batch, steps, dtype, coefficients, form).split([g.shape[0] for g in gradients])
    return tuple(p.transpose(1, 2) if t else p for p, t in zip(parts, tall, strict=True))


def add_and_restore_norm(w: Float[Tensor, "b m n"], g: Float[Tensor, "b m n"]) -> Float[Tensor, "b m n"]:
    """Add g to w, then bring every column (over dim 1) back to the norm that it has in w."""
    check_shape("w", w, (None, None, None))
    check_shape("g", g, tuple(w.shape))
    check_floating(w=w, g=g)
    wider = w.dtype if w.dtype.itemsize >= g.dtype.itemsize else g.dtype
    if triton_runs(wider, w, g):
        from kernels import triton_norm

        return triton_norm.add_and_restore_norm(w, g)
    return (lean if runs_lean() else reference).add_and_restore_norm(w, g)


def linear_state(
    k: Float[Tensor, "b n d"], v: Float[Tensor, "b n e"], lr: Float[Tensor, "b n 1"] | None = None
) -> Float[Tensor, "b d e"]:
    """State of linear attention, sum_n lr_n k_n^T v_n, in the dtype of k; without `lr` every rate is 1."""
    check_shape("k", k, (None, None, None))
    check_shape("v", v, (k.shape[0], k.shape[1], None))
    if lr is not None:
        check_shape("lr", lr, (k.shape[0], k.shape[1], 1))
    check_alike(k=k, v=v)
    dtype = operand_dtype(k)
    if triton_runs(dtype, k, v):
        from kernels import triton_linear

        return triton_linear.linear_state(k.to(dtype), v.to(dtype), lr, k.dtype)
    return reference.linear_state(k, v, lr).to(k.dtype)


def linear_apply(s: Float[Tensor, "b d e"], q: Float[Tensor, "b n d"]) -> Float[Tensor, "b n e"]:
    """Read a linear-attention state: q s, on every backend the matrix product of PyTorch (nothing to fuse with it)."""
    check_shape("s", s, (None, None, None))
    check_shape("q", q, (s.shape[0], None, s.shape[1]))
    check_alike(s=s, q=q)
    return reference.linear_apply(s, q)


def linear_prefix_states(
    k: Float[Tensor, "b n d"],
    v: Float[Tensor, "b n e"],
    lr: Float[Tensor, "b n 1"] | None = None,
    chunk: int = 1,
    momentum: Float[Tensor, "b c"] | None = None,
    steps: int = 0,
    dtype: torch.dtype = torch.bfloat16,
) -> Float[Tensor, "b c d e"]:
    """State that starts at zero after every chunk of `chunk` tokens (c = ceil(n / chunk)), all chunks in parallel.

    Chunk t adds m_t = G_t + momentum_t m_(t-1), where G_t is its `linear_state`; `steps` > 0 orthogonalises every m_t.
    """
    check_shape("k", k, (None, None, None))
    if chunk < 1:
        raise ValueError(f"chunk must be 1 or more tokens, got {chunk}")
    count = -(-k.shape[1] // chunk)
    if momentum is not None:
        check_shape("momentum", momentum, (k.shape[0], count))
    check_shape("v", v, (k.shape[0], k.shape[1], None))
    if lr is not None:
        check_shape("lr", lr, (k.shape[0], k.shape[1], 1))
    if count == 0:
        return k.new_zeros(k.shape[0], 0, k.shape[2], v.shape[2])
    rates = None if lr is None else prefix.split_chunks(lr, chunk).flatten(0, 1)
    keys, values = (prefix.split_chunks(x, chunk).flatten(0, 1) for x in (k, v))
    added = linear_state(keys, values, rates).unflatten(0, (-1, count))
    if momentum is not None:
        added = prefix.mix(added, momentum)
    if steps:
        added = orthogonalize(added.flatten(0, 1), steps, dtype).view_as(added)
    return added.cumsum(dim=1)


def silu_unit(x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
    """Queries and keys from their projection: y / (|y| + 1e-5) with y = silu(x), for every row."""
    check_shape("x", x, (None, None, None))
    check_alike(x=x)
    if triton_runs(x.dtype, x):
        from kernels import triton_rows

        return triton_rows.silu_unit(x)
    return (lean if runs_lean() else reference).silu_unit(x)


def rms_norm(x: Float[Tensor, "b n d"], weight: Float[Tensor, " d"], eps: float = 1e-5) -> Float[Tensor, "b n d"]:
    """Norm of read-outs: weight x / sqrt(mean(x^2) + eps) for every row, in the dtype of weight.

    Triton under autocast gives autocast's dtype: what follows is a matrix product.
    """
    check_shape("x", x, (None, None, None))
    check_shape("weight", weight, (x.shape[2],))
    check_floating(x=x, weight=weight)
    if triton_runs(x.dtype, x, weight):
        from kernels import triton_rows

        return triton_rows.rms_norm(x, weight, eps, operand_dtype(weight))
    return reference.rms_norm(x, weight, eps)


def embed_rays(
    weight: Float[Tensor, "o p"],
    c2w: Float[Tensor, "v 4 4"],
    intrinsics: Float[Tensor, "v 4"],
    images: Float[Tensor, "v 3 h w"] | None,
    image_size: tuple[int, int],
    patch: int,
) -> Float[Tensor, "v t o"]:
    """Token of every patch of `patch` x `patch` pixels: (rays and colours of its pixels, 12 numbers each) weight^T.

    The 12 numbers are origin, direction, origin x direction, and colour in -1..1 (0 without images). Rays are made in
    the cameras' precision, by Triton in float32. Cameras get gradients from the plain version only.
    """
    h, w = image_size
    if patch < 1 or h % patch or w % patch:
        raise ValueError(f"image_size is {h} x {w}, expected multiples of the patch, {patch}")
    check_shape("weight", weight, (None, reference.RAY_CHANNELS * patch * patch))
    check_shape("c2w", c2w, (None, 4, 4))
    check_shape("intrinsics", intrinsics, (c2w.shape[0], 4))
    given = {"weight": weight, "c2w": c2w, "intrinsics": intrinsics}
    if images is not None:
        check_shape("images", images, (c2w.shape[0], 3, h, w))
        given["images"] = images
    check_floating(**given)
    dtype = operand_dtype(weight)
    moving = torch.is_grad_enabled() and (c2w.requires_grad or intrinsics.requires_grad)
    if moving and current_backend() == "triton":
        raise BackendError("the triton backend cannot give c2w or intrinsics gradients; set NVS_KERNELS to auto")
    if not moving and triton_runs(dtype, *given.values()):
        from kernels import triton_rays

        return triton_rays.embed_rays(weight.to(dtype), c2w, intrinsics, images, h, w, patch)
    return reference.embed_rays(weight, c2w, intrinsics, images, image_size, patch)


def _check_fast_weights(w0: Tensor, w1: Tensor, w2: Tensor) -> None:
    check_shape("w0", w0, (None, None, None))
    b, d, f = w0.shape
    check_shape("w1", w1, (b, f, d))
    check_shape("w2", w2, (b, d, f))
