"""Linear attention, Gated DeltaNet and the state-space layer against their definitions token by token."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tiny import TINY, make_model, make_views

from nvs.memory import (
    DeltaNetConfig,
    DeltaNetMemory,
    LinearConfig,
    LinearMemory,
    SSDConfig,
    SSDMemory,
    SSDState,
    build_memory,
)
from nvs.memory.deltanet import delta_rule, inverse_of_one_plus
from nvs.memory.ssd import append_tokens

CONFIGS = {
    "linear": LinearConfig(head_dim=4),
    "learned": LinearConfig(head_dim=4, feature_map="learned"),
    "deltanet": DeltaNetConfig(head_dim=4, chunk=2),
    "ssd": SSDConfig(head_dim=4, state_size=3),
}


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make(config):
    torch.manual_seed(0)
    memory = build_memory(8, config).double()  # type: ignore[attr-defined]
    for parameter in memory.parameters():  # the small standard init hides mistakes
        torch.nn.init.normal_(parameter, std=0.6)
    return memory


@pytest.mark.parametrize("feature_map", ["elu", "learned"])
def test_linear_attention_weighs_tokens_by_products_of_features(feature_map):
    memory = make(LinearConfig(head_dim=4, feature_map=feature_map))
    assert isinstance(memory, LinearMemory)
    x, tokens = rand(2, 3, 8, seed=1), rand(2, 5, 8, seed=2)
    k, v = memory.key_value(tokens).chunk(2, dim=-1)
    reads = []
    for h, head in enumerate((slice(0, 4), slice(4, 8))):
        features = []
        for y, norm, mapped in ((memory.query(x), memory.q_norm, memory.q_map), (k, memory.k_norm, memory.k_map)):
            unit = F.rms_norm(y[..., head], (4,), norm.weight, eps=1e-5)
            if mapped is None:
                features.append(torch.where(unit > 0, unit + 1, unit.exp()))
            else:
                exponents = (unit @ mapped[h]).exp(), (-unit @ mapped[h]).exp()
                features.append(torch.cat([e / e.sum(-1, keepdim=True) for e in exponents], dim=-1))
        weights = features[0] @ features[1].transpose(1, 2)
        assert (weights > 0).all()
        # A division by the sum of the weights, as published, would be undone by the norm of the read-out.
        reads.append(F.rms_norm(weights @ v[..., head], (4,), memory.read_norm.weight, eps=1e-5))
    state = memory.update_state(memory.init_state(2), tokens)
    torch.testing.assert_close(memory.apply_state(state, x), memory.out(torch.cat(reads, dim=-1)))


@pytest.mark.parametrize("chunk", [1, 4, 8, 64])
def test_chunks_of_the_delta_rule_equal_its_tokens(chunk):
    s, v = rand(2, 3, 4, 5), rand(2, 3, 13, 5, seed=1)
    k = F.normalize(rand(2, 3, 13, 4, seed=2), dim=-1)
    beta, log_alpha = torch.sigmoid(rand(2, 3, 13, seed=3)), -F.softplus(rand(2, 3, 13, seed=4))
    ours = delta_rule(s, k, v, beta, log_alpha, chunk)
    for n in range(13):
        key = k[:, :, n, :, None]
        s = log_alpha[:, :, n, None, None].exp() * s
        s = s + beta[:, :, n, None, None] * key * (v[:, :, n, None] - key.transpose(-1, -2) @ s)
    torch.testing.assert_close(ours, s, rtol=1e-10, atol=1e-10)


def test_inverse_of_triangles_is_stable():
    """Equal keys make the worst system: every entry below the diagonal is 1, and powers of it would grow to 1e17."""
    lower = torch.ones(2, 3, 64, 64).tril(-1)
    lower[1] = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0)).tril(-1)
    product = inverse_of_one_plus(lower) @ (lower + torch.eye(64))
    torch.testing.assert_close(product, torch.eye(64).expand_as(product), rtol=0, atol=1e-5)


def test_a_pair_that_was_just_absorbed_is_recalled():
    k, v = F.normalize(rand(1, 1, 4, 4), dim=-1), rand(1, 1, 4, 3, seed=1)
    s = delta_rule(torch.zeros(1, 1, 4, 3).double(), k, v, torch.ones(1, 1, 4).double(), torch.zeros(1, 1, 4).double())
    torch.testing.assert_close(k[:, :, -1:] @ s, v[:, :, -1:])


@pytest.mark.parametrize("forgetting", [0.0, 1e-6, 5.0, 200.0])
def test_delta_rule_stays_finite_in_single_precision(forgetting):
    k = F.normalize(rand(1, 1, 300, 8), dim=-1).float().requires_grad_(True)
    v, beta = rand(1, 1, 300, 8, seed=1).float(), torch.full((1, 1, 300), 0.99)
    log_alpha = torch.full((1, 1, 300), -forgetting, requires_grad=True)
    s = delta_rule(torch.zeros(1, 1, 8, 8), k, v, beta, log_alpha)
    s.square().sum().backward()
    assert s.isfinite().all() and k.grad.isfinite().all() and log_alpha.grad.isfinite().all()


def test_order_of_tokens_matters_where_it_is_said_so():
    for config in CONFIGS.values():
        memory, x = make(config), rand(1, 6, 8)
        state = memory.init_state(1)
        there, back = memory.update_state(state, x), memory.update_state(state, x.flip(1))
        changed = any((a - b).abs().max() > 1e-9 for a, b in zip(there, back, strict=True))
        assert changed == memory.order_matters, config.kind


def test_state_space_sums_equal_their_recurrence_from_both_sides():
    k, v = rand(2, 9, 3), rand(2, 2, 9, 4, seed=1)
    steps, log_decay = F.softplus(rand(2, 2, 2, 9, seed=2)), -F.softplus(rand(2, 2, 2, 9, seed=3))
    empty = SSDState(*(torch.zeros(2, 2, *shape).double() for shape in ((3, 4), (3, 4), ())))

    def recurrence(direction: int, order) -> torch.Tensor:
        s = torch.zeros(2, 2, 3, 4).double()
        for n in order:
            new = k[:, None, n, :, None] * v[:, :, n, None, :]
            s = log_decay[direction, :, :, n, None, None].exp() * s + steps[direction, :, :, n, None, None] * new
        return s

    for pieces in ([9], [4, 5], [1, 7, 1]):
        state, start = empty, 0
        for size in pieces:
            part = slice(start, start + size)
            state = append_tokens(state, k[:, part], v[:, :, part], steps[..., part], log_decay[..., part])
            start += size
        torch.testing.assert_close(state.forward, recurrence(0, range(9)))
        torch.testing.assert_close(state.backward, recurrence(1, reversed(range(9))))
        torch.testing.assert_close(state.log_decay, log_decay[1].sum(-1))


def test_state_space_layer_goes_on_where_it_stopped():
    memory = make(SSDConfig(head_dim=4, state_size=3))
    assert isinstance(memory, SSDMemory)
    x = rand(2, 10, 8)
    whole = memory.update_state(memory.init_state(2), x)
    pieces = memory.update_state(memory.update_state(memory.init_state(2), x[:, :3]), x[:, 3:], slice_tokens=2)
    for ours, expected in zip(pieces, whole, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("config", [DeltaNetConfig, SSDConfig])
def test_heads_start_out_remembering_for_long(config):
    """Reading comes after the last token, so that a head that soon forgets would see the last patch only."""
    torch.manual_seed(0)
    memory = build_memory(256, config(head_dim=64))
    x = torch.randn(1, 2000, 256)
    with torch.no_grad():
        if isinstance(memory, DeltaNetMemory):
            decay = F.softplus(memory.forgetting.bias) * memory.log_scale.exp()
        else:
            decay = F.softplus(memory.steps(x)).mean((0, 1)).view(2, -1) * memory.log_rate.exp()  # type: ignore
    assert 5e-5 < decay.min() < 2e-4 and 5e-3 < decay.max() < 2e-2


def test_a_state_fits_its_model_whatever_the_chunk():
    model = make_model(replace(TINY, memory=DeltaNetConfig(head_dim=16))).requires_grad_(False)
    state, target = model.encode(make_views(2)), make_views(1, seed=2).cameras
    assert torch.equal(model.with_memory(chunk=4).render(state, target), model.render(state, target))


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="feature_map"):
        LinearConfig(feature_map="cosine")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chunk"):
        DeltaNetConfig(chunk=0)
    with pytest.raises(ValueError, match="power of 2"):
        DeltaNetConfig(chunk=12)
    with pytest.raises(ValueError, match="state_size"):
        SSDConfig(state_size=0)
