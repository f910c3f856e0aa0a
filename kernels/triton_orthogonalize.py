"""Newton-Schulz in Triton: products that are known to be symmetric compute one triangle and mirror it.

The backward computes the iterates again from the input: only the input is kept between forward and backward.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import launch
from kernels.reference import Coefficients, normalisation, restart_groups, step_coefficients
from kernels.triton_tiles import load_tile


@triton.jit
def symmetric_kernel(
    a, b, addend, out, m, n, a_b, a_m, a_n, b_b, b_n, b_m, alpha, beta,
    HAS_ADDEND: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out [b m m] = alpha a b + beta addend, which must be symmetric, for a [b m n] and b [b n m]; BM equals BN.

    Programs count through the tiles of the upper triangle column by column: column j starts at j (j + 1) / 2.
    """
    tiles = tl.cdiv(m, BM)
    count = tiles * (tiles + 1) // 2
    batch = (tl.program_id(0) // count).to(tl.int64)
    index = tl.program_id(0) % count
    col = ((tl.sqrt(8.0 * index + 1.0) - 1.0) * 0.5).to(tl.int32)
    # The square root of a GPU is approximate: put it right in whole numbers.
    col = tl.where(col * (col + 1) // 2 > index, col - 1, col)
    col = tl.where((col + 1) * (col + 2) // 2 <= index, col + 1, col)
    row = index - col * (col + 1) // 2
    rows = row * BM + tl.arange(0, BM)
    cols = col * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, n, BK):
        inner = start + tl.arange(0, BK)
        left = load_tile(a + batch * a_b, rows, inner, m, n, a_m, a_n)
        right = load_tile(b + batch * b_b, inner, cols, n, m, b_n, b_m)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    inside = (rows < m)[:, None] & (cols < m)[None, :]
    upper = batch * m * m + rows[:, None] * m + cols[None, :]
    total *= alpha
    if HAS_ADDEND:
        total += beta * tl.load(addend + upper, mask=inside, other=0.0).to(tl.float32)
    result = total.to(out.dtype.element_ty)
    tl.store(out + upper, result, mask=inside)
    if row != col:
        # Transposed in registers, so that both stores write whole lines.
        lower = batch * m * m + cols[:, None] * m + rows[None, :]
        tl.store(out + lower, tl.trans(result), mask=(cols < m)[:, None] & (rows < m)[None, :])


def symmetric_product(
    a: Tensor, b: Tensor | None = None, alpha: float = 1.0, addend: Tensor | None = None, beta: float = 1.0
) -> Tensor:
    """alpha a b + beta addend for a [b m n], b [b n m] (a^T if not given), where the result is known to be symmetric.

    Not a b^T with a symmetric b: rounding leaves b a little asymmetric within a tile, and iterations of transposed
    products amplify that.
    """
    b = a.transpose(1, 2) if b is None else b
    batch, m, n = a.shape
    out = a.new_empty(batch, m, m)

    def programs(t):
        tiles = triton.cdiv(m, t.m)
        return batch * (tiles * (tiles + 1) // 2)

    launch(
        "symmetric", symmetric_kernel, programs, a,
        a, b, a if addend is None else addend.contiguous(), out, m, n, *a.stride(), *b.stride(), alpha, beta,
        HAS_ADDEND=addend is not None,
    )  # fmt: skip
    return out


@torch.library.custom_op("nvs_kernels::orthogonalize", mutates_args=())
def orthogonalize(g: Tensor, steps: int, dtype: torch.dtype, coefficients: str, form: str) -> Tensor:
    """Newton-Schulz iteration towards the nearest orthogonal matrix, run in `dtype`."""
    x, _ = _start(g, dtype, coefficients)
    rows = step_coefficients(_coefficients(coefficients), steps)
    if form == "gram":
        x = _iterate_gram(x, rows)
    else:
        for step in rows:
            x, _, _ = _step(x, *step)
    # Without steps in the same precision the start may be the input itself.
    return _restore_side(x, g).to(g.dtype, copy=True, memory_format=torch.contiguous_format)


@orthogonalize.register_fake
def _(g: Tensor, steps: int, dtype: torch.dtype, coefficients: str, form: str) -> Tensor:
    return torch.empty_like(g, memory_format=torch.contiguous_format)


@torch.library.custom_op("nvs_kernels::orthogonalize_backward", mutates_args=())
def orthogonalize_backward(g: Tensor, grad: Tensor, steps: int, dtype: torch.dtype, coefficients: str) -> Tensor:
    """Gradient of `orthogonalize` for g, through iterates that are computed again in the standard form."""
    x, length = _start(g, dtype, coefficients)
    rows = step_coefficients(_coefficients(coefficients), steps)
    iterates = []
    for step in rows:
        following, gram, z = _step(x, *step)
        iterates.append((x, gram, z))
        x = following
    d_x = _short_side_first(grad).to(dtype)
    for (x, gram, z), (a, b, c) in zip(reversed(iterates), reversed(rows), strict=True):
        # y = a x + z x with z = b G + c G G and G = x x^T; t is twice the symmetric part of the gradient at G.
        d_z = torch.bmm(d_x, x.transpose(1, 2))
        d_z = d_z + d_z.transpose(1, 2)
        d_gram = torch.bmm(d_z, gram)
        t = b * d_z + c * (d_gram + d_gram.transpose(1, 2))
        d_x = torch.baddbmm(torch.baddbmm(d_x, z, d_x, beta=a), t, x)
    # Through x = g / (scale |g| + eps).
    scale, eps = normalisation(_coefficients(coefficients))
    g_side, d_x = _short_side_first(g).float(), d_x.float()
    bottom = scale * length + eps
    along = (d_x * g_side).sum(dim=(1, 2), keepdim=True) * scale / (length.clamp_min(1e-30) * bottom * bottom)
    return _restore_side(d_x / bottom - g_side * along, g).to(g.dtype).contiguous()


@orthogonalize_backward.register_fake
def _(g: Tensor, grad: Tensor, steps: int, dtype: torch.dtype, coefficients: str) -> Tensor:
    return torch.empty_like(g, memory_format=torch.contiguous_format)


def _save(ctx, inputs, output) -> None:
    g, ctx.steps, ctx.dtype, ctx.coefficients, _ = inputs
    ctx.save_for_backward(g)


def _backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    (g,) = ctx.saved_tensors
    return orthogonalize_backward(g, grad, ctx.steps, ctx.dtype, ctx.coefficients), None, None, None, None


orthogonalize.register_autograd(_backward, setup_context=_save)


def _start(g: Tensor, dtype: torch.dtype, coefficients: str) -> tuple[Tensor, Tensor]:
    """The normalised matrix with its short side first, in `dtype`, and the norm of g in fp32 [b 1 1]."""
    scale, eps = normalisation(_coefficients(coefficients))
    x = _short_side_first(g).float()
    length = x.norm(dim=(1, 2), keepdim=True)
    return (x / (scale * length + eps)).to(dtype).contiguous(), length


def _step(x: Tensor, a: float, b: float, c: float) -> tuple[Tensor, Tensor, Tensor]:
    """(a x + z x, G, z) with G = x x^T and z = b G + c G G."""
    gram = symmetric_product(x)
    z = symmetric_product(gram, gram, alpha=c, addend=gram, beta=b)
    return torch.baddbmm(x, z, x, beta=a), gram, z


def _iterate_gram(x: Tensor, rows: tuple[tuple[float, float, float], ...]) -> Tensor:
    """`reference.orthogonalize` in its Gram form; q, z and the Gram matrix commute, so their products are symmetric."""
    for group in restart_groups(rows):
        gram, q = symmetric_product(x), None
        for i, (a, b, c) in enumerate(group):
            z = symmetric_product(gram, gram, alpha=c, addend=gram, beta=b)
            if q is None:
                q = z + a * torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
            else:
                q = symmetric_product(z, q, addend=q, beta=a)
            if i + 1 < len(group):
                half = symmetric_product(z, gram, addend=gram, beta=a)
                gram = symmetric_product(half, z, addend=half, beta=a)
        x = x if q is None else torch.bmm(q, x)
    return x


def _short_side_first(g: Tensor) -> Tensor:
    return g.transpose(1, 2) if g.shape[1] > g.shape[2] else g


def _restore_side(x: Tensor, g: Tensor) -> Tensor:
    return x.transpose(1, 2) if g.shape[1] > g.shape[2] else x


def _coefficients(name: str) -> Coefficients:
    return "muon5" if name == "muon5" else "polar"
