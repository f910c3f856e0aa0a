"""Linear layers and attention: fast ways on a CPU against float64, and what they refuse."""

import pytest
import torch
import torch.nn.functional as F

import kernels
from kernels import onednn


def error(ours, exact):
    return ((ours.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("then", ["none", "silu", "gelu"])
@pytest.mark.parametrize("rows", [1, 33, 300])
def test_linear_is_as_exact_as_pytorch(rows, then, dtype):
    x, w = torch.randn(2, rows, 250).to(dtype), torch.randn(300, 250).to(dtype) / 16
    activation = {"none": lambda y: y, "silu": F.silu, "gelu": F.gelu}[then]
    exact = activation(x.double() @ w.double().T)
    with torch.no_grad():
        ours = kernels.linear(x, w, then)
    assert ours.dtype == dtype and ours.shape == (2, rows, 300)
    assert error(ours, exact) <= 2 * error(activation(F.linear(x, w)), exact) + 1e-9


def test_linear_under_autocast_and_with_gradients():
    x, w = torch.randn(100, 500), torch.randn(400, 500, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert kernels.linear(x, w).dtype == torch.bfloat16
        with torch.no_grad():
            assert kernels.linear(x, w, "gelu").dtype == torch.bfloat16
    kernels.linear(x, w, "silu").sum().backward()
    assert w.grad is not None


@pytest.mark.parametrize("transposed", [False, True])
def test_large_products_of_fast_weights(transposed):
    """Those that oneDNN multiplies; weights may lie in memory in any order."""
    w0, w2 = (torch.randn(2, 256, 512) / 16 for _ in range(2))
    w1, x = torch.randn(2, 512, 256) / 23, torch.randn(2, 200, 256)
    if transposed:
        w0, w1, w2 = (w.transpose(1, 2).contiguous().transpose(1, 2)[:, :, ::1] for w in (w0, w1, w2))
    assert onednn.pays(x[:1], 512, torch.float32)
    exact = (F.silu(x.double() @ w0.double()) * (x.double() @ w2.double())) @ w1.double()
    with torch.no_grad():
        assert error(kernels.apply_swiglu(w0, w1, w2, x), exact) < 2e-6
        assert error(kernels.apply_swiglu(*(y.bfloat16() for y in (w0, w1, w2, x))), exact) < 1e-2


@pytest.mark.parametrize("shape", [(2, 300, 400), (1, 400, 300)])
def test_large_symmetric_products_in_newton_schulz(shape):
    g = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    exact = kernels.orthogonalize(g.double(), 5, torch.float64)
    with kernels.use_backend("reference"):
        plain = {dtype: error(kernels.orthogonalize(g, 5, dtype), exact) for dtype in (torch.float32, torch.bfloat16)}
    with torch.no_grad():
        for dtype, limit in plain.items():
            assert error(kernels.orthogonalize(g, 5, dtype), exact) <= 1.5 * limit


@pytest.mark.parametrize("shape", [(3, 24, 40), (2, 40, 24), (1, 5, 5)])
def test_own_backward_pass_of_newton_schulz(shape):
    generator = torch.Generator().manual_seed(4)
    g, up = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))

    def gradient(dtype, backend, autocast=False):
        x = g.to(torch.float64 if dtype == torch.float64 else torch.float32).requires_grad_()
        with kernels.use_backend(backend), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            y = kernels.orthogonalize(x, 5, dtype)
        return torch.autograd.grad(y, x, up.to(x.dtype))[0]

    exact = gradient(torch.float64, "reference")
    torch.testing.assert_close(gradient(torch.float64, "auto"), exact, rtol=1e-10, atol=1e-10)
    plain = error(gradient(torch.bfloat16, "reference", autocast=True), exact)
    assert error(gradient(torch.bfloat16, "auto", autocast=True), exact) <= plain


@pytest.mark.parametrize(("n", "t"), [(3, 20), (1, 1), (2, 1100)])
def test_attention_within_views(n, t):
    d, h = 16, 3
    qkv, q_gain, k_gain = torch.randn(n, t, 3 * h * d), torch.rand(d) + 0.5, torch.rand(d) + 0.5
    q, k, v = qkv.double().view(n, t, 3, h, d).permute(2, 0, 3, 1, 4)
    q, k = (x / (x.square().mean(-1, keepdim=True) + 1.2e-7).sqrt() * g for x, g in ((q, q_gain), (k, k_gain)))
    exact = ((q @ k.transpose(-1, -2) * d**-0.5).softmax(-1) @ v).transpose(1, 2).reshape(n, t, h * d)
    limits = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
    for dtype, limit in limits.items():
        before = qkv.to(dtype)
        for gradients in (False, True):
            with torch.set_grad_enabled(gradients):
                ours = kernels.window_attention(before, q_gain, k_gain)
            assert ours.dtype == dtype and error(ours, exact) < limit
        assert torch.equal(before, qkv.to(dtype))


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"weight has shape \(3, 5\), expected \(any, 4\)"):
        kernels.linear(torch.randn(2, 4), torch.randn(3, 5))
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match=r"weight has dtype torch\.bfloat16, expected torch\.float32 as x"),
    ):
        kernels.linear(torch.randn(64, 1024), torch.randn(512, 1024).bfloat16())
    with pytest.raises(ValueError, match="then is 'relu', expected one of none, silu, gelu"):
        kernels.linear(torch.randn(2, 4), torch.randn(3, 4), "relu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="qkv has 10 channels, expected a multiple of 3 x 4"):
        kernels.window_attention(torch.randn(1, 2, 10), torch.ones(4), torch.ones(4))
