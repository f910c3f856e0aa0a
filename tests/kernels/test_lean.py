"""The inference form of the reference: bit for bit the same, nothing written into arguments."""

import pytest
import torch

import kernels


def calls() -> dict:
    generator = torch.Generator().manual_seed(5)
    b, n, d, f = 2, 37, 24, 40
    w0, w2 = (torch.randn(b, d, f, generator=generator) for _ in range(2))
    w1 = torch.randn(b, f, d, generator=generator)
    k, v = (torch.randn(b, n, d, generator=generator) for _ in range(2))
    rates = [torch.rand(b, n, 1, generator=generator) for _ in range(3)]
    return {
        "apply_swiglu": (kernels.apply_swiglu, [w0, w1, w2, k]),
        "fast_weight_gradients": (kernels.fast_weight_gradients, [w0, w1, w2, k, v, *rates]),
        "orthogonalize wide": (lambda g: kernels.orthogonalize(g, 5, torch.float32), [w0]),
        "orthogonalize tall": (lambda g: kernels.orthogonalize(g, 5, torch.bfloat16, "polar"), [w1]),
        "add_and_restore_norm": (kernels.add_and_restore_norm, [w0, w2]),
    }


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", calls())
def test_bit_equal_and_arguments_untouched(name, dtype, autocast):
    call, arguments = calls()[name]
    arguments = [x.to(dtype) for x in arguments]
    before = [x.clone() for x in arguments]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        ours = call(*arguments)
        with kernels.use_backend("reference"):
            expected = call(*arguments)
    ours, expected = (x if isinstance(x, tuple) else (x,) for x in (ours, expected))
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(ours, expected, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


def test_no_steps_leave_the_matrix_alone():
    g = torch.randn(1, 3, 4)
    with torch.no_grad():
        assert torch.equal(kernels.orthogonalize(g, 0, torch.float32), g / (g.norm() + 1e-7))


@pytest.mark.parametrize("coefficients", ["muon5", "polar"])
@pytest.mark.parametrize("shape", [(2, 24, 40), (1, 300, 301), (1, 301, 257)])
def test_gram_form_with_banded_products(shape, coefficients):
    g = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    expected = kernels.orthogonalize(g, 5, torch.float64, coefficients)
    with torch.no_grad():
        ours = kernels.orthogonalize(g, 5, torch.float64, coefficients, "gram")
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
