"""Newton-Schulz variants against the singular value decomposition."""

import pytest
import torch

import kernels
from kernels import reference


def polynomial_of_singular_values(g: torch.Tensor, coefficients: str, steps: int) -> torch.Tensor:
    u, s, vh = torch.linalg.svd(g, full_matrices=False)
    scale, eps = reference.normalisation(coefficients)
    s = s / (scale * s.norm(dim=-1, keepdim=True) + eps)
    for a, b, c in reference.step_coefficients(coefficients, steps):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag_embed(s) @ vh


@pytest.mark.parametrize("form", ["standard", "gram"])
@pytest.mark.parametrize("coefficients", ["muon5", "polar"])
@pytest.mark.parametrize("steps", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("shape", [(2, 6, 24), (2, 24, 12), (1, 1, 4), (2, 9, 9)])
def test_every_form_is_the_polynomial_of_the_singular_values(shape, steps, coefficients, form):
    g = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours = kernels.orthogonalize(g, steps, torch.float64, coefficients, form)
    expected = polynomial_of_singular_values(g, coefficients, steps)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_polar_coefficients_end_nearer_to_one():
    g = torch.randn(4, 48, 96, generator=torch.Generator().manual_seed(2))
    spread = {}
    for coefficients in ("muon5", "polar"):
        values = torch.linalg.svdvals(kernels.orthogonalize(g, 5, torch.float32, coefficients))
        spread[coefficients] = (values - 1).abs().max()
    assert spread["polar"] < spread["muon5"] < 0.4


@pytest.mark.parametrize("coefficients", ["muon5", "polar"])
def test_gram_form_in_bf16_is_as_close_to_float64_as_twice_the_standard_form(coefficients):
    g = torch.randn(2, 64, 256, generator=torch.Generator().manual_seed(3))
    # Singular values over four orders of magnitude, as gradients have them.
    g = g * torch.logspace(0, -4, 64)[None, :, None]
    exact = kernels.orthogonalize(g.double(), 5, torch.float64, coefficients)
    errors = {
        form: (kernels.orthogonalize(g, 5, torch.bfloat16, coefficients, form).double() - exact).norm()
        for form in ("standard", "gram")
    }
    assert errors["gram"] < 2 * errors["standard"]


def test_gradients_pass_gradcheck_in_both_forms():
    g = torch.randn(1, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4), requires_grad=True)
    for form in ("standard", "gram"):
        assert torch.autograd.gradcheck(
            lambda x, form=form: kernels.orthogonalize(x, 3, torch.float64, "polar", form), g
        )


def test_unknown_choices_are_named():
    g = torch.zeros(1, 2, 2)
    with pytest.raises(ValueError, match="coefficients is 'muon6', expected one of muon5, polar"):
        kernels.orthogonalize(g, coefficients="muon6")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="form is 'fast', expected one of standard, gram"):
        kernels.orthogonalize(g, form="fast")  # pyright: ignore[reportArgumentType]


def test_several_gradients_as_one_batch():
    generator = torch.Generator().manual_seed(7)
    shapes = ((2, 6, 10), (2, 10, 6), (1, 6, 10))
    gradients = [torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes]
    together = kernels.orthogonalize_together(gradients, 5, torch.float64, form="gram")
    for g, ours in zip(gradients, together, strict=True):
        torch.testing.assert_close(ours, kernels.orthogonalize(g, 5, torch.float64), rtol=1e-9, atol=1e-9)
    with pytest.raises(
        ValueError, match=r"gradients\[1\] holds 3 x 4 matrices, expected the sides of gradients\[0\], 6 and"
    ):
        kernels.orthogonalize_together([gradients[0], torch.zeros(1, 3, 4)])
