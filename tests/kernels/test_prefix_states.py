"""Prefix states in parallel against the recurrence, and against the mask that one copy of the paper prints."""

import pytest
import torch

import kernels
from kernels import prefix, reference


def tokens(n: int, b: int = 2, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(b, n, w, generator=generator, dtype=torch.float64) for w in (4, 6))
    return k, v, torch.rand(b, n, 1, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("steps", [0, 5])
@pytest.mark.parametrize("with_momentum", [False, True])
@pytest.mark.parametrize(("n", "chunk"), [(12, 3), (13, 4), (5, 1), (3, 8), (1, 1)])
def test_parallel_form_equals_the_recurrence(n, chunk, with_momentum, steps):
    k, v, lr = tokens(n)
    count = -(-n // chunk)
    momentum = torch.rand(2, count, dtype=torch.float64) * 2 - 0.5 if with_momentum else None
    ours = kernels.linear_prefix_states(k, v, lr, chunk, momentum, steps, torch.float64)
    expected = reference.linear_prefix_states(k, v, lr, chunk, momentum, steps, torch.float64)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)
    last = kernels.linear_state(k, v, lr)
    if momentum is None and not steps:
        torch.testing.assert_close(ours[:, -1], last, rtol=1e-12, atol=1e-12)


def test_the_mask_is_a_matrix_product_and_not_an_elementwise_one():
    momentum = torch.tensor([[0.3, 0.5, 2.0, 0.7]], dtype=torch.float64)
    k, v, lr = tokens(8, b=1)
    gradients = kernels.linear_state(*(prefix.split_chunks(x, 2).flatten(0, 1) for x in (k, v, lr)))
    ones = torch.ones(4, 4, dtype=torch.float64).tril()
    expected = reference.linear_prefix_states(k, v, lr, 2, momentum)[0]
    decays = prefix.decay(momentum)[0]
    torch.testing.assert_close(decays[3], torch.tensor([0.5 * 2 * 0.7, 2 * 0.7, 0.7, 1.0], dtype=torch.float64))
    torch.testing.assert_close(torch.einsum("ij,jde->ide", ones @ decays, gradients), expected)
    assert (torch.einsum("ij,jde->ide", ones * decays, gradients) - expected).abs().max() > 1


def test_prefix_states_have_gradients():
    k, v, lr = (x.requires_grad_() for x in tokens(5))
    momentum = torch.rand(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: kernels.linear_prefix_states(*x[:3], 2, x[3]), (k, v, lr, momentum))


def test_zero_tokens_give_no_states():
    assert kernels.linear_prefix_states(torch.zeros(2, 0, 4), torch.zeros(2, 0, 6)).shape == (2, 0, 4, 6)
    assert reference.linear_prefix_states(torch.zeros(2, 0, 4), torch.zeros(2, 0, 6)).shape == (2, 0, 4, 6)


def test_wrong_chunk_and_momentum_are_named():
    k, v, _ = tokens(6)
    with pytest.raises(ValueError, match="chunk must be 1 or more tokens, got 0"):
        kernels.linear_prefix_states(k, v, chunk=0)
    with pytest.raises(ValueError, match=r"momentum has shape \(2, 6\), expected \(2, 2\)"):
        kernels.linear_prefix_states(k, v, chunk=3, momentum=torch.zeros(2, 6))
