"""The public operators: shapes are checked here, then the chosen backend runs.

The formulas stand in `reference.py`. `auto` and `reference` run that plain PyTorch code, on any device; this version
has no Triton operators yet, so `triton` raises instead of falling back silently.
"""

from __future__ import annotations

from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor

from kernels import prefix, reference
from kernels.backend import current_backend


def apply_swiglu(
    w0: Float[Tensor, "b d f"], w1: Float[Tensor, "b f d"], w2: Float[Tensor, "b d f"], x: Float[Tensor, "b n d"]
) -> Float[Tensor, "b n d"]:
    """Read SwiGLU fast weights: (silu(x w0) * (x w2)) w1."""
    _check_fast_weights(w0, w1, w2)
    _check("x", x, (w0.shape[0], None, w0.shape[1]))
    _require_reference()
    return reference.apply_swiglu(w0, w1, w2, x)


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
    """Ascent direction of sum_n lr_n <f(k_n), v_n> for w0, w1 and w2; gradients of token slices add up exactly."""
    _check_fast_weights(w0, w1, w2)
    _check("k", k, (w0.shape[0], None, w0.shape[1]))
    _check("v", v, tuple(k.shape))
    for name, lr in (("lr0", lr0), ("lr1", lr1), ("lr2", lr2)):
        _check(name, lr, (k.shape[0], k.shape[1], 1))
    _require_reference()
    return reference.fast_weight_gradients(w0, w1, w2, k, v, lr0, lr1, lr2)


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
    _check("g", g, (None, None, None))
    if steps < 0:
        raise ValueError(f"steps must be 0 or more, got {steps}")
    _check_choice("coefficients", coefficients, reference.Coefficients)
    _check_choice("form", form, reference.Form)
    _require_reference()
    return reference.orthogonalize(g, steps, dtype, coefficients, form)


def add_and_restore_norm(w: Float[Tensor, "b m n"], g: Float[Tensor, "b m n"]) -> Float[Tensor, "b m n"]:
    """Add g to w, then bring every column (over dim 1) back to the norm that it has in w."""
    _check("w", w, (None, None, None))
    _check("g", g, tuple(w.shape))
    _require_reference()
    return reference.add_and_restore_norm(w, g)


def linear_state(
    k: Float[Tensor, "b n d"], v: Float[Tensor, "b n e"], lr: Float[Tensor, "b n 1"] | None = None
) -> Float[Tensor, "b d e"]:
    """State of linear attention, sum_n lr_n k_n^T v_n; without `lr` every rate is 1."""
    _check("k", k, (None, None, None))
    _check("v", v, (k.shape[0], k.shape[1], None))
    if lr is not None:
        _check("lr", lr, (k.shape[0], k.shape[1], 1))
    _require_reference()
    return reference.linear_state(k, v, lr)


def linear_apply(s: Float[Tensor, "b d e"], q: Float[Tensor, "b n d"]) -> Float[Tensor, "b n e"]:
    """Read a linear-attention state: q s."""
    _check("s", s, (None, None, None))
    _check("q", q, (s.shape[0], None, s.shape[1]))
    _require_reference()
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
    _check("k", k, (None, None, None))
    if chunk < 1:
        raise ValueError(f"chunk must be 1 or more tokens, got {chunk}")
    count = -(-k.shape[1] // chunk)
    if momentum is not None:
        _check("momentum", momentum, (k.shape[0], count))
    _check("v", v, (k.shape[0], k.shape[1], None))
    if lr is not None:
        _check("lr", lr, (k.shape[0], k.shape[1], 1))
    if count == 0:
        return k.new_zeros(k.shape[0], 0, k.shape[2], v.shape[2])
    pieces = [None if x is None else prefix.split_chunks(x, chunk).flatten(0, 1) for x in (k, v, lr)]
    added = linear_state(*pieces).unflatten(0, (-1, count))
    if momentum is not None:
        added = prefix.mix(added, momentum)
    if steps:
        added = orthogonalize(added.flatten(0, 1), steps, dtype).view_as(added)
    return added.cumsum(dim=1)


def _check_fast_weights(w0: Tensor, w1: Tensor, w2: Tensor) -> None:
    _check("w0", w0, (None, None, None))
    b, d, f = w0.shape
    _check("w1", w1, (b, f, d))
    _check("w2", w2, (b, d, f))


def _check(name: str, x: Tensor, expected: tuple[int | None, ...]) -> None:
    if x.dim() != len(expected) or any(e is not None and e != s for s, e in zip(x.shape, expected, strict=True)):
        wanted = ", ".join("any" if e is None else str(e) for e in expected)
        raise ValueError(f"{name} has shape {tuple(x.shape)}, expected ({wanted})")


def _check_choice(name: str, value: str, choices: object) -> None:
    if value not in get_args(choices):
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(get_args(choices))}")


def _require_reference() -> None:
    if current_backend() == "triton":
        raise RuntimeError("this version has no Triton operators yet; set NVS_KERNELS to auto or reference")
