"""The operators in plain differentiable PyTorch: their definition.

Shape letters: b fast-weight heads (scenes x heads), n tokens, d head width, f hidden width. Every operator works in the
dtype of its matrices; sums over tokens therefore accumulate as that dtype's matrix product does (fp32 for bf16).
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

NORM_EPS = 1e-5
"""Added to a column norm before dividing by it, as in the published LaCT code."""

UNIT_EPS = 1e-5
"""Added to the length of a query or key before dividing by it, as in the published LaCT code."""

RAY_CHANNELS = 12
"""Per pixel: ray origin, unit direction, origin x direction, colour in -1..1 (the published layout of LaCT)."""

Coefficients = Literal["muon5", "polar"]
Form = Literal["standard", "gram"]

MUON5 = ((3.4445, -4.7750, 2.0315),) * 5
"""Quintic Newton-Schulz coefficients of Muon (Jordan et al., 2024)."""

POLAR = (
    (8.1566, -22.4833, 15.8788),
    (4.0429, -2.8089, 0.5000),
    (3.8917, -2.7725, 0.5061),
    (3.2858, -2.3681, 0.4645),
    (2.3465, -1.7098, 0.4233),
)
"""Coefficients that change from step to step (Polar Express, arXiv 2505.16932): closer to 1 after five steps."""


def apply_swiglu(
    w0: Float[Tensor, "b d f"], w1: Float[Tensor, "b f d"], w2: Float[Tensor, "b d f"], x: Float[Tensor, "b n d"]
) -> Float[Tensor, "b n d"]:
    """Read fast weights: (silu(x w0) * (x w2)) w1 (LaCT, arXiv 2505.23884)."""
    return (F.silu(x @ w0) * (x @ w2)) @ w1


def swiglu_features(
    w0: Float[Tensor, "b d f"], w2: Float[Tensor, "b d f"], x: Float[Tensor, "b n d"]
) -> Float[Tensor, "b n f"]:
    """Hidden features of SwiGLU fast weights: silu(x w0) * (x w2)."""
    return F.silu(x @ w0) * (x @ w2)


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
    """Ascent direction of sum_n lr_n <f(k_n), v_n> for each matrix, in closed form; each has its own rates."""
    gate, up = k @ w0, k @ w2
    activated = F.silu(gate)
    d_hidden = v @ w1.transpose(1, 2)
    sigmoid = torch.sigmoid(gate)
    d_gate = d_hidden * up * sigmoid * (1 + gate * (1 - sigmoid))
    d_up = d_hidden * activated
    g0 = (k * lr0.to(k.dtype)).transpose(1, 2) @ d_gate
    g1 = (activated * up * lr1.to(k.dtype)).transpose(1, 2) @ v
    g2 = (k * lr2.to(k.dtype)).transpose(1, 2) @ d_up
    return g0, g1, g2


def orthogonalize(
    g: Float[Tensor, "b m n"],
    steps: int = 5,
    dtype: torch.dtype = torch.bfloat16,
    coefficients: Coefficients = "muon5",
    form: Form = "standard",
) -> Float[Tensor, "b m n"]:
    """Newton-Schulz iteration towards the nearest orthogonal matrix U V^T of g = U S V^T, run in `dtype`."""
    tall = g.shape[1] > g.shape[2]
    x = (g.transpose(1, 2) if tall else g).to(dtype)
    scale, eps = normalisation(coefficients)
    x = x / (x.norm(dim=(1, 2), keepdim=True) * scale + eps)
    rows = step_coefficients(coefficients, steps)
    x = _iterate_gram(x, rows) if form == "gram" else _iterate(x, rows)
    return (x.transpose(1, 2) if tall else x).to(g.dtype)


def step_coefficients(coefficients: Coefficients, steps: int) -> tuple[tuple[float, float, float], ...]:
    """The (a, b, c) of every step; the last of the set is repeated beyond its length."""
    known = MUON5 if coefficients == "muon5" else POLAR
    return (known + known[-1:] * steps)[:steps]


def normalisation(coefficients: Coefficients) -> tuple[float, float]:
    """(s, e) such that the iteration starts from g / (s |g| + e): every singular value is then below 1."""
    return (1.0, 1e-7) if coefficients == "muon5" else (1.02, 1e-6)


def _iterate(x: Tensor, rows: tuple[tuple[float, float, float], ...]) -> Tensor:
    for a, b, c in rows:
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def _iterate_gram(x: Tensor, rows: tuple[tuple[float, float, float], ...]) -> Tensor:
    """The same polynomial of x x^T multiplied out on m x m matrices: x_k = q_k x_0; q_k and the Gram matrix commute.

    Five steps cost 6 r + 14 products of m x m matrices (symmetric ones counted half), `_iterate` 15 r + 5, for n = r m.
    """
    for group in restart_groups(rows):
        gram, q = x @ x.transpose(1, 2), None
        for i, (a, b, c) in enumerate(group):
            z = b * gram + c * gram @ gram
            q = z + a * torch.eye(z.shape[-1], dtype=z.dtype, device=z.device) if q is None else a * q + z @ q
            if i + 1 < len(group):
                half = a * gram + z @ gram
                gram = a * half + half @ z
        x = x if q is None else q @ x
    return x


def restart_groups(
    rows: tuple[tuple[float, float, float], ...],
) -> list[tuple[tuple[float, float, float], ...]]:
    """Steps of the Gram form between two returns to the matrix itself: rounding errors of small eigenvalues grow."""
    return [rows[:2], *(rows[i : i + 3] for i in range(2, len(rows), 3))]


def add_and_restore_norm(w: Float[Tensor, "b m n"], g: Float[Tensor, "b m n"]) -> Float[Tensor, "b m n"]:
    """w + g with every column (over dim 1) brought back to the norm that it has in w.

    The norm of w is a constant to autograd, as in the published code: gradients pass through the direction alone.
    """
    updated = w + g
    return updated / (updated.norm(dim=1, keepdim=True) + NORM_EPS) * w.detach().norm(dim=1, keepdim=True)


def linear_state(
    k: Float[Tensor, "b n d"], v: Float[Tensor, "b n e"], lr: Float[Tensor, "b n 1"] | None = None
) -> Float[Tensor, "b d e"]:
    """State of linear attention: sum_n lr_n k_n^T v_n."""
    return (k if lr is None else k * lr.to(k.dtype)).transpose(1, 2) @ v


def linear_apply(s: Float[Tensor, "b d e"], q: Float[Tensor, "b n d"]) -> Float[Tensor, "b n e"]:
    """Read a linear-attention state: q s."""
    return q @ s


def linear_prefix_states(
    k: Float[Tensor, "b n d"],
    v: Float[Tensor, "b n e"],
    lr: Float[Tensor, "b n 1"] | None = None,
    chunk: int = 1,
    momentum: Float[Tensor, "b c"] | None = None,
    steps: int = 0,
    dtype: torch.dtype = torch.bfloat16,
) -> Float[Tensor, "b c d e"]:
    """What every chunk of tokens leaves in a state that starts at zero, as the recurrence over chunks t.

    m_t = sum of lr k^T v over chunk t + momentum_t m_(t-1);  s_t = s_(t-1) + m_t, with m_t orthogonalised if steps > 0.
    """
    rates = torch.ones_like(k[..., :1]) if lr is None else lr
    total = velocity = k.new_zeros(k.shape[0], k.shape[2], v.shape[2])
    states = []
    for t, parts in enumerate(zip(k.split(chunk, 1), v.split(chunk, 1), rates.split(chunk, 1), strict=True)):
        velocity = linear_state(*parts) + (0 if momentum is None else momentum[:, t, None, None] * velocity)
        total = total + (orthogonalize(velocity, steps, dtype) if steps else velocity)
        states.append(total)
    # Splitting no tokens gives one empty chunk.
    return torch.stack(states, dim=1)[:, : -(-k.shape[1] // chunk)]


def silu_unit(x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
    """Queries and keys from their projection: silu(x), every row divided by its length."""
    y = F.silu(x)
    return y / (y.norm(dim=-1, keepdim=True) + UNIT_EPS)


def rms_norm(x: Float[Tensor, "b n d"], weight: Float[Tensor, " d"], eps: float = 1e-5) -> Float[Tensor, "b n d"]:
    """weight x / sqrt(mean(x^2) + eps) for every row, in the dtype of weight."""
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps)


def embed_rays(
    weight: Float[Tensor, "o p"],
    c2w: Float[Tensor, "v 4 4"],
    intrinsics: Float[Tensor, "v 4"],
    images: Float[Tensor, "v 3 h w"] | None,
    image_size: tuple[int, int],
    patch: int,
) -> Float[Tensor, "v t o"]:
    """Token of every patch: its rays and colours (`RAY_CHANNELS`), pixel by pixel, times weight^T; 0 for no images.

    Rays are worked out in their own precision under autocast, which would spoil them; the product rounds them at last.
    """
    with torch.autocast(c2w.device.type, enabled=False):
        numbers = ray_patches(c2w, intrinsics, images, image_size, patch)
    return F.linear(numbers.to(weight.dtype), weight)


def ray_patches(
    c2w: Float[Tensor, "v 4 4"],
    intrinsics: Float[Tensor, "v 4"],
    images: Float[Tensor, "v 3 h w"] | None,
    image_size: tuple[int, int],
    patch: int,
) -> Float[Tensor, "v t p"]:
    """Rays and colours of every patch, pixel by pixel, channels last; pixel centres at +0.5, OpenCV axes."""
    h, w = image_size
    fx, fy, cx, cy = (x[:, None, None] for x in intrinsics.unbind(-1))
    y, x = torch.meshgrid(
        torch.arange(h, device=c2w.device, dtype=c2w.dtype) + 0.5,
        torch.arange(w, device=c2w.device, dtype=c2w.dtype) + 0.5,
        indexing="ij",
    )
    u, v = (x - cx) / fx, (y - cy) / fy
    in_camera = torch.stack([u, v, torch.ones_like(u)], dim=1).flatten(2)
    directions = (c2w[:, :3, :3] @ in_camera).transpose(1, 2)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    origins = c2w[:, None, :3, 3].expand_as(directions)
    colours = torch.zeros_like(directions) if images is None else (images * 2 - 1).flatten(2).transpose(1, 2)
    pixels = torch.cat([origins, directions, torch.linalg.cross(origins, directions), colours], dim=-1)
    rows, columns = h // patch, w // patch
    patches = pixels.view(len(c2w), rows, patch, columns, patch, RAY_CHANNELS).transpose(2, 3)
    return patches.reshape(len(c2w), rows * columns, RAY_CHANNELS * patch**2)
