"""Optimisers and the learning rate's course."""

import math

import pytest
import torch
from tiny import TINY, make_model

from nvs.optimizers import build_optimizer, learning_rate_factor


def set_gradients(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_weight_is_trained_once_and_only_matrices_decay(name):
    model = make_model()
    optimizer = build_optimizer(model, name, 1e-3, 0.05, 1e-3)
    groups = [(id(p), g["weight_decay"], p.ndim) for g in optimizer.param_groups for p in g["params"]]
    assert sorted(i for i, _, _ in groups) == sorted(map(id, model.parameters()))
    assert all(decay == (0.05 if ndim >= 2 else 0.0) for _, decay, ndim in groups)


def test_muon_steps_are_orthogonal_and_as_long_as_adamw_ones():
    model = make_model()
    before = {k: p.detach().clone() for k, p in model.named_parameters()}
    set_gradients(model, 0)
    build_optimizer(model, "muon", 1e-3, 0.0, 1e-2).step()
    square = model.blocks[0].attention.out.weight.detach() - before["blocks.0.attention.out.weight"]
    singular = torch.linalg.svdvals(square / (0.2 * math.sqrt(TINY.dim) * 1e-2))
    assert singular.min() > 0.6 and singular.max() < 1.3
    # The first step of Adam has the size of the learning rate everywhere.
    plain = model.decode.weight.detach() - before["decode.weight"]
    torch.testing.assert_close(plain.abs(), torch.full_like(plain, 1e-3), rtol=1e-3, atol=1e-7)


def test_restored_optimizer_goes_on_as_if_never_stopped():
    straight, stopped = make_model(), make_model()
    first, second = (build_optimizer(m, "muon", 1e-3, 0.05, 2e-3) for m in (straight, stopped))
    for seed in range(2):
        for model, optimizer in ((straight, first), (stopped, second)):
            set_gradients(model, seed)
            optimizer.step()
    fresh = build_optimizer(stopped, "muon", 1e-3, 0.05, 2e-3)
    fresh.load_state_dict(second.state_dict())
    for optimizer in (first, fresh):
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    for model, optimizer in ((straight, first), (stopped, fresh)):
        set_gradients(model, 5)
        optimizer.step()
    for a, b in zip(straight.parameters(), stopped.parameters(), strict=True):
        assert torch.equal(a, b)


def test_weights_without_gradient_stay():
    model = make_model()
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = build_optimizer(model, "muon", 1e-3, 0.05, 1e-3)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_learning_rate_rises_linearly_and_falls_as_a_half_cosine():
    assert [learning_rate_factor(s, 4, 0.0, 0.0) for s in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert learning_rate_factor(100, 4, 0.5, 0.0) == pytest.approx(0.5)
    assert learning_rate_factor(100, 4, 1.0, 0.1) == pytest.approx(0.1)
    assert learning_rate_factor(100, 4, 1.5, 0.1) == pytest.approx(0.1)
    assert learning_rate_factor(100, 0, 0.25, 0.2) == pytest.approx(0.2 + 0.8 * (1 + math.cos(math.pi / 4)) / 2)
