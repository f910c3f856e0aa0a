"""The Triton operators against the reference in Triton's interpreter (fp32): test_triton.py runs it with that on.

Memory that an operator leaves unwritten holds NaN (deterministic mode fills new tensors). The truth is the reference in
float64; an operator may be off by twice what the reference in float32 is off by, a gradient by three times.
"""

from collections.abc import Callable

import pytest
import torch

import kernels
from kernels import (
    triton_fast_weights,
    triton_linear,
    triton_norm,
    triton_orthogonalize,
    triton_rays,
    triton_rows,
    triton_swiglu,
)

SIZES = [(2, 63, 33, 40), (1, 100, 7, 63), (1, 1, 1, 1)]
"""(matrices, tokens, width, hidden width)."""

ROUNDING = 2e-6
"""Relative error that any order of summation is allowed."""


TERM = torch.finfo(torch.float32).eps
"""Absolute error of every number: a gradient that cancels to nothing keeps the rounding of its terms of size 1."""


@pytest.fixture(autouse=True)
def nan_in_fresh_memory():
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def inputs(b: int, n: int, d: int, f: int, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w0": (b, d, f), "w1": (b, f, d), "w2": (b, d, f), "k": (b, n, d), "v": (b, n, d)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    tensors["gain"] = torch.randn(d, generator=generator)
    return tensors | {name: torch.rand(b, n, 1, generator=generator) for name in ("lr0", "lr1", "lr2")}


def orthogonalize(form: str, coefficients: str) -> Callable:
    return lambda g: kernels.orthogonalize(g, 3, torch.promote_types(g.dtype, torch.float32), coefficients, form)


OPERATORS: dict[str, tuple[Callable, tuple[str, ...]]] = {
    "apply_swiglu": (kernels.apply_swiglu, ("w0", "w1", "w2", "k")),
    "swiglu_features": (kernels.swiglu_features, ("w0", "w2", "k")),
    "fast_weight_gradients": (kernels.fast_weight_gradients, ("w0", "w1", "w2", "k", "v", "lr0", "lr1", "lr2")),
    "last_weight_gradient": (kernels.last_weight_gradient, ("w0", "w2", "k", "v", "lr1")),
    "add_and_restore_norm": (kernels.add_and_restore_norm, ("w0", "w2")),
    "linear_state": (kernels.linear_state, ("k", "v")),
    "linear_state with rates": (kernels.linear_state, ("k", "v", "lr0")),
    "linear_prefix_states": (lambda k, v, lr: kernels.linear_prefix_states(k, v, lr, 24), ("k", "v", "lr0")),
    "orthogonalize wide": (orthogonalize("standard", "muon5"), ("w0",)),
    "orthogonalize tall, polar": (orthogonalize("standard", "polar"), ("w1",)),
    "orthogonalize gram": (orthogonalize("gram", "muon5"), ("w0",)),
    "orthogonalize_together": (
        lambda *g: kernels.orthogonalize_together(g, 2, torch.promote_types(g[0].dtype, torch.float32)),
        ("w0", "w1", "w2"),
    ),
    "silu_unit": (kernels.silu_unit, ("k",)),
    "rms_norm": (kernels.rms_norm, ("k", "gain")),
}


def values_and_gradients(call: Callable, arguments: list[torch.Tensor], backend: kernels.Backend) -> list[torch.Tensor]:
    leaves = [x.detach().requires_grad_() for x in arguments]
    with kernels.use_backend(backend):
        results = call(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        generator = torch.Generator().manual_seed(9)
        weights = [torch.randn(r.shape, generator=generator).to(r.dtype) for r in results]
        loss = sum(((r * w).sum() for r, w in zip(results, weights, strict=True)), torch.zeros(()))
        return [*(r.detach() for r in results), *torch.autograd.grad(loss, leaves)]


def check(call: Callable, arguments: list[torch.Tensor]) -> None:
    exact = values_and_gradients(call, [x.double() for x in arguments], "reference")
    plain = values_and_gradients(call, arguments, "reference")
    ours = values_and_gradients(call, arguments, "triton")
    gradients_from = len(exact) - len(arguments)
    for i, (truth, reference, result) in enumerate(zip(exact, plain, ours, strict=True)):
        assert result.shape == reference.shape and result.dtype == reference.dtype
        factor = 2 if i < gradients_from else 3
        allowed = factor * (reference - truth).norm() + ROUNDING * truth.norm() + TERM * truth.numel() ** 0.5
        assert (result - truth).norm() <= allowed, f"result {i}"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", OPERATORS)
def test_values_and_every_gradient(name, size):
    call, names = OPERATORS[name]
    x = inputs(*size)
    check(call, [x[n] for n in names])


PATCH = 3


def ray_inputs(views: int, image_size: tuple[int, int], width: int) -> tuple[Callable, list[torch.Tensor]]:
    """Tokens of rays as a function of weight and images, for cameras at random."""
    generator = torch.Generator().manual_seed(8)
    rotations, _ = torch.linalg.qr(torch.randn(views, 3, 3, generator=generator))
    c2w = torch.eye(4).repeat(views, 1, 1)
    c2w[:, :3] = torch.cat([rotations, torch.randn(views, 3, 1, generator=generator)], dim=2)
    h, w = image_size
    intrinsics = torch.tensor([1.1 * w, 1.2 * w, 0.4 * w, 0.6 * h]).repeat(views, 1)

    def embed(weight: torch.Tensor, images: torch.Tensor | None = None) -> torch.Tensor:
        cameras = (c2w.to(weight.dtype), intrinsics.to(weight.dtype))
        return kernels.embed_rays(weight, *cameras, images, image_size, PATCH)

    weight = torch.randn(width, 12 * PATCH**2, generator=generator)
    return embed, [weight, torch.rand(views, 3, h, w, generator=generator)]


@pytest.mark.parametrize(("views", "image_size", "width"), [(2, (15, 21), 33), (1, (3, 3), 1), (3, (6, 3), 20)])
def test_tokens_of_rays(views, image_size, width):
    embed, (weight, images) = ray_inputs(views, image_size, width)
    check(embed, [weight])
    strided = images.transpose(2, 3).contiguous().transpose(2, 3)
    check(embed, [weight.T.contiguous().T, strided])


def test_tokens_of_no_views_and_rays_of_cameras_that_move():
    _, (weight, images) = ray_inputs(2, (6, 9), 5)
    nothing = torch.zeros(0, 4, 4), torch.zeros(0, 4), images[:0], (6, 9), PATCH
    for backend in ("triton", "reference"):
        none, gradient = values_and_gradients(lambda w: kernels.embed_rays(w, *nothing), [weight], backend)
        assert none.shape == (0, 6, 5) and torch.equal(gradient, torch.zeros_like(weight))
    with kernels.use_backend("triton"):
        moving = torch.eye(4)[None].requires_grad_()
        with pytest.raises(RuntimeError, match="cannot give c2w or intrinsics gradients"):
            kernels.embed_rays(weight, moving, torch.ones(1, 4), None, (6, 9), PATCH)
    kernels.embed_rays(weight, moving, torch.ones(1, 4), None, (6, 9), PATCH).sum().backward()
    assert moving.grad is not None and moving.grad.isfinite().all()


@pytest.mark.parametrize(("d", "f"), [(1024, 20), (20, 4096)])
def test_wide_matrices(d, f):
    x = inputs(1, 2, d, f)
    names = ("w0", "w1", "w2", "k")
    with kernels.use_backend("triton"):
        ours = kernels.apply_swiglu(*(x[name] for name in names))
    expected = kernels.reference.apply_swiglu(*(x[name].double() for name in names))
    torch.testing.assert_close(ours.double(), expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


def test_tokens_split_over_programs():
    x = inputs(1, 2500, 5, 3)
    check(kernels.linear_state, [x["k"], x["v"], x["lr0"]])


def test_columns_longer_than_a_program_holds():
    x = inputs(1, 1, 1100, 3)
    check(kernels.add_and_restore_norm, [x["w0"], x["w2"]])


@pytest.mark.parametrize(
    "name",
    [
        *("apply_swiglu", "fast_weight_gradients", "add_and_restore_norm", "linear_state with rates"),
        *("orthogonalize wide", "silu_unit", "rms_norm"),
    ],
)
def test_strided_inputs(name):
    call, names = OPERATORS[name]
    x = inputs(2, 17, 9, 12)
    arguments = [x[n] for n in names]
    strided = []
    for i, argument in enumerate(arguments):
        if argument.dim() == 1:
            strided.append(argument.repeat_interleave(2)[::2])
        elif i % 2:
            strided.append(argument.transpose(1, 2).contiguous().transpose(1, 2))
        else:
            strided.append(torch.stack([argument, torch.full_like(argument, torch.nan)], dim=-1)[..., 0])
    assert not strided[0].is_contiguous()
    check(call, strided)


def test_weights_of_one_scene_expanded_over_the_batch():
    x, one = inputs(3, 9, 8, 10), inputs(1, 9, 8, 10)
    check(kernels.apply_swiglu, [*(one[n].expand(3, -1, -1) for n in ("w0", "w1", "w2")), x["k"]])


def test_no_tokens():
    x = inputs(2, 0, 5, 7)
    for name in (
        *("apply_swiglu", "swiglu_features", "fast_weight_gradients", "linear_state with rates"),
        *("silu_unit", "rms_norm"),
    ):
        call, names = OPERATORS[name]
        results = values_and_gradients(call, [x[n] for n in names], "triton")
        assert all(torch.equal(r, torch.zeros_like(r)) for r in results), name


def test_a_zero_matrix_stays_zero_and_has_finite_gradients():
    for call in (
        orthogonalize("standard", "muon5"),
        lambda g: kernels.add_and_restore_norm(g, torch.zeros_like(g)),
        kernels.silu_unit,
        lambda x: kernels.rms_norm(x, torch.ones(6)),
    ):
        value, gradient = values_and_gradients(call, [torch.zeros(1, 4, 6)], "triton")
        assert torch.equal(value, torch.zeros_like(value)) and gradient.isfinite().all()


def test_gradients_of_slices_add_up():
    x = inputs(1, 50, 9, 12)
    weights = [x[n] for n in ("w0", "w1", "w2")]
    tokens = [x[n] for n in ("k", "v", "lr0", "lr1", "lr2")]
    with kernels.use_backend("triton"):
        whole = kernels.fast_weight_gradients(*weights, *tokens)
        parts = [
            kernels.fast_weight_gradients(*weights, *(t[:, s] for t in tokens)) for s in (slice(0, 7), slice(7, 50))
        ]
    for i in range(3):
        torch.testing.assert_close(parts[0][i] + parts[1][i], whole[i], rtol=1e-5, atol=1e-5)


def test_operators_are_registered_properly():
    x = {name: tensor.requires_grad_() for name, tensor in inputs(1, 6, 4, 5).items()}
    w0, w1, w2, k, v, lr0 = (x[n] for n in ("w0", "w1", "w2", "k", "v", "lr0"))
    rates = (lr0, x["lr1"], x["lr2"])
    c2w, intrinsics, images = torch.eye(4)[None], torch.ones(1, 4), torch.rand(1, 3, 4, 6).requires_grad_()
    projection = torch.randn(3, 48).requires_grad_()
    for operator, arguments in (
        (triton_swiglu.apply_swiglu, (w0, w1, w2, k)),
        (triton_swiglu.swiglu_features, (w0, w2, k)),
        (triton_fast_weights.fast_weight_gradients, (w0, w1, w2, k, v, *rates, torch.float32)),
        (triton_orthogonalize.orthogonalize, (w1, 2, torch.float32, "muon5", "standard")),
        (triton_norm.add_and_restore_norm, (w0, w2)),
        (triton_linear.linear_state, (k, v, lr0, torch.float32)),
        (triton_linear.linear_state, (k, v, None, torch.float32)),
        (triton_rows.silu_unit, (k,)),
        (triton_rows.rms_norm, (k, x["gain"], 1e-5, torch.float32)),
        (triton_rays.embed_rays, (projection, c2w, intrinsics, images, 4, 6, 2)),
        (triton_rays.embed_rays, (projection, c2w, intrinsics, None, 4, 6, 2)),
    ):
        torch.library.opcheck(operator, arguments)


def test_update_and_read_compile_without_a_graph_break():
    embed, (projection, images) = ray_inputs(1, (9, 12), 6)
    x = {"projection": projection, "images": images, **inputs(1, 12, 6, 8)}

    def read(projection, images, w0, w1, w2, k, v, gain, lr0, lr1, lr2):
        k = kernels.silu_unit(k + embed(projection, images))
        gradients = kernels.fast_weight_gradients(w0, w1, w2, k, v, lr0, lr1, lr2)
        steps = kernels.orthogonalize_together(gradients, 2, torch.float32)
        weights = [kernels.add_and_restore_norm(w, s) for w, s in zip((w0, w1, w2), steps, strict=True)]
        read = kernels.apply_swiglu(*weights, k) + kernels.linear_apply(kernels.linear_state(k, v, lr0), k)
        return kernels.rms_norm(read, gain)

    compiled = torch.compile(read, fullgraph=True, backend="aot_eager")
    plain = values_and_gradients(read, list(x.values()), "triton")
    ours = values_and_gradients(compiled, list(x.values()), "triton")
    for expected, result in zip(plain, ours, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)
