"""LaCT's options and its reductions: recorded numbers of the published code, and the theory that connects them."""

from dataclasses import replace
from itertools import pairwise

import pytest
import safetensors.torch
import torch
from tiny import TINY, make_model, make_views

from data import UserError
from kernels import orthogonalize
from nvs.memory import VARIANTS, LaCTConfig, LaCTMemory, LastWeightState, scan, update_rule, variant

RULES = {
    "dot_product": variant("lact"),
    "ga_dot_product": variant("lact", direction="ascent"),
    "no_query": variant("lact", query="key"),
    "mse": variant("lact", inner_loss="squared_error"),
    "only_w1": variant("v1"),
    "only_w1_no_wn": variant("v2"),
    "only_w1_straight_qk_no_wn": variant("v3"),
    "only_w1_straight_qk_no_lr1_no_wn": variant("v4"),
    "only_w1_straight_qk_no_lr1_no_wn_muon": variant("v6"),
    "only_w1_straight_qk": variant("v3", weight_norm=True),
    "only_w1_straight_qk_no_lr1": variant("v4", weight_norm=True),
    "only_w1_straight_qk_no_lr1_no_muon": variant("v6", weight_norm=True),
}
"""The recorded update rules as settings."""
PARALLEL = ("v2", "v3", "v4", "v5", "v6")
WRITTEN = 23  # tokens of the recorded update


def difference(ours: torch.Tensor, recorded: torch.Tensor) -> float:
    return ((ours - recorded).norm() / recorded.norm()).item()


def make(name: str, dim: int = 16, dtype: torch.dtype = torch.float64, **settings) -> LaCTMemory:
    torch.manual_seed(0)
    memory = LaCTMemory(dim, variant(name, head_dim=8, newton_schulz_dtype="float32", **settings))
    for parameter in memory.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return memory.to(dtype)


def with_settings(memory: LaCTMemory, **settings) -> LaCTMemory:
    changed = LaCTMemory(memory.heads * memory.config.head_dim, replace(memory.config, **settings))
    weights = {k: w for k, w in memory.state_dict().items() if k in changed.state_dict()}
    changed.load_state_dict(weights)
    return changed.to(memory.w1.dtype)


def rand(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.golden
@pytest.mark.parametrize("rule", RULES)
def test_recorded_update_rules(shared, rule):
    recorded = safetensors.torch.load_file(shared / "golden/ttt_ops_fp32.safetensors")
    config = replace(RULES[rule], newton_schulz_dtype="float32")
    given = {k.removeprefix("in."): x.requires_grad_() for k, x in recorded.items() if k.startswith("in.")}
    names = ("w1",) if config.kernel == "linear" else ("w0", "w1", "w2")
    if config.kernel == "linear":
        given["w1"] = given["w1_linear"]
    before = {name: given[name] for name in names}
    rates = [given[f"lr{i}"][:, :WRITTEN] for i in ((1,) if config.updated == "w1" else (0, 1, 2))]
    written = (given["k"][:, :WRITTEN], given["v"][:, :WRITTEN], tuple(rates) if config.token_rates else None)
    after, _ = update_rule.step(config, before, {}, update_rule.gradients(config, before, *written))
    read = update_rule.read(config, after, given["k" if config.query == "key" else "q"])
    (read * torch.cos(torch.arange(read.numel())).view_as(read)).sum().backward()

    assert difference(read, recorded[f"{rule}.o"]) < 1e-5
    for name in names:
        assert difference(after[name], recorded[f"{rule}.{name}"]) < 1e-5, name
    gradients = {k.rpartition(".")[2]: x for k, x in recorded.items() if k.startswith(f"{rule}.grad.")}
    assert {"k", "v", "w1"} <= set(gradients)
    for name, gradient in gradients.items():
        assert difference(given[name].grad, gradient) < 1e-4, name


@pytest.mark.parametrize("name", PARALLEL)
@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.8}, {"inner_steps": 2}, {"momentum": 0.5, "inner_steps": 2, "direction": "ascent"}]
)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_parallel_form_equals_the_recurrent_one(name, settings, dtype, limit):
    recurrent = make(name, dtype=dtype, **settings)
    parallel = with_settings(recurrent, form="parallel")
    x = rand(2, 23, 16, dtype=dtype)
    state = recurrent.update_state(recurrent.init_state(2), rand(2, 5, 16, seed=2, dtype=dtype))
    (ours, read), (theirs, expected) = scan(parallel, state, x, 5), scan(recurrent, state, x, 5)
    for a, b in zip([*ours, read], [*theirs, expected], strict=True):
        assert difference(a, b) < limit
    chunked = [with_settings(memory, chunks=5) for memory in (parallel, recurrent)]
    for slice_tokens in (None, 3):
        ours, theirs = (memory.update_state(state, x, slice_tokens) for memory in chunked)
        assert all(difference(a, b) < limit for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", PARALLEL)
def test_both_forms_have_the_same_gradients(name):
    gradients = []
    for form in ("recurrent", "parallel"):
        memory, x = make(name, momentum=0.5, form=form), rand(1, 11, 16).requires_grad_()
        state, read = scan(memory, memory.init_state(1), x, 4)
        (read.square().sum() + state.w1.sum()).backward()
        gradients.append([x.grad, *(p.grad for p in memory.parameters())])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_variant_6_is_linear_attention():
    memory = make("v6")
    tokens, x = rand(2, 7, 16), rand(2, 3, 16, seed=2)
    _, k, v = memory.queries_keys_values(tokens)
    q, _, _ = memory.queries_keys_values(x)
    read = q @ memory.w1 + (q @ k.transpose(2, 3)) @ v
    state = memory.update_state(memory.init_state(2), tokens)
    torch.testing.assert_close(memory.apply_state(state, x), memory.read_out(read))


def test_momentum_is_a_running_sum_of_gradients():
    memory = make("v2", momentum=0.6)
    state = memory.init_state(1)
    velocity, w1 = torch.zeros_like(state.w1), state.w1
    for seed in (1, 2, 3):
        x = rand(1, 6, 16, seed=seed)
        _, k, v = memory.queries_keys_values(x)
        rate = torch.nn.functional.softplus(memory.rates(x) + torch.tensor(0.01).expm1().log().double())
        hidden = torch.nn.functional.silu(k @ memory.w0) * (k @ memory.w2)
        velocity = (hidden * rate.transpose(1, 2)[..., None]).transpose(2, 3) @ v + 0.6 * velocity
        w1 = w1 + orthogonalize(velocity.flatten(0, 1), 5, torch.float64).view_as(w1)
        state = memory.update_state(state, x)
    torch.testing.assert_close(state.w1, w1, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(state.m1, velocity, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("inner_loss", ["dot_product", "squared_error"])
@pytest.mark.parametrize("direction", ["descent", "ascent"])
def test_steps_go_down_or_up_the_inner_loss(inner_loss, direction):
    settings = {"inner_loss": inner_loss, "direction": direction, "token_rates": False, "base_lr": 1e-3}
    memory = make("lact", newton_schulz_steps=0, weight_norm=False, **settings)
    x = rand(3, 9, 16)
    losses = [memory.inner_loss(memory.init_state(3), x)]
    for inner_steps in (1, 3):
        changed = with_settings(memory, inner_steps=inner_steps)
        losses.append(changed.inner_loss(changed.update_state(changed.init_state(3), x), x))
    signs = [(b - a).sign() for a, b in pairwise(losses)]
    assert all((sign == (-1 if direction == "descent" else 1)).all() for sign in signs)


def test_the_step_is_the_gradient_of_the_inner_loss():
    memory = make("lact", newton_schulz_steps=0, weight_norm=False, token_rates=False, base_lr=1.0)
    for inner_loss in ("dot_product", "squared_error"):
        memory = with_settings(memory, inner_loss=inner_loss)
        x = rand(1, 9, 16)
        state = type(memory.init_state(1))(*(w.detach().clone().requires_grad_() for w in memory.init_state(1)))
        memory.inner_loss(state, x).sum().backward()
        after = memory.update_state(state, x)
        for before, now in zip(state, after, strict=True):  # the loss is a mean over tokens and heads
            torch.testing.assert_close(now - before, -before.grad * x.shape[1] * memory.heads)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(
    "settings", [{}, {"momentum": 0.7}, {"query": "key", "direction": "ascent"}, {"inner_loss": "squared_error"}]
)
def test_one_step_is_read_as_linear_attention(name, settings):
    memory = make(name, **settings)
    earlier, tokens, x = rand(2, 5, 16), rand(2, 23, 16, seed=2), rand(2, 4, 16, seed=3)
    state = memory.update_state(memory.init_state(2), earlier)
    base, scores, values = memory.read_map(state, tokens, x)
    assert scores.shape == (2, memory.heads, 4, 23)
    expected = memory.apply_state(memory.update_state(state, tokens), x)
    torch.testing.assert_close(memory.read_out(base + scores @ values), expected, rtol=1e-8, atol=1e-8)


def test_a_map_is_not_drowned_by_the_rounding_of_steps():
    exact = make("v2", dtype=torch.float32)
    tokens, x = rand(1, 40, 16, dtype=torch.float32), rand(1, 4, 16, seed=3, dtype=torch.float32)
    # Tokens that hardly differ leave small singular values, where rounding would be magnified.
    tokens = tokens[:, :1] + 0.01 * tokens
    rounding = with_settings(exact, newton_schulz_dtype="bfloat16")
    _, expected, _ = exact.read_map(exact.init_state(1), tokens, x)
    _, scores, _ = rounding.read_map(rounding.init_state(1), tokens, x)
    assert difference(scores, expected) < 1e-4


def test_several_steps_have_no_linear_map():
    memory = make("v2", inner_steps=2)
    with pytest.raises(UserError, match="set both to 1"):
        memory.read_map(memory.init_state(1), rand(1, 3, 16), rand(1, 3, 16))


def test_chunks_are_absorbed_one_after_the_other():
    memory, x = make("lact", chunks=3), rand(2, 11, 16)
    once = with_settings(memory, chunks=1)
    state = once.init_state(2)
    for part in x.split([4, 4, 3], dim=1):
        state = once.update_state(state, part)
    for a, b in zip(memory.update_state(memory.init_state(2), x), state, strict=True):
        torch.testing.assert_close(a, b)


def test_a_model_can_be_tried_with_other_settings():
    model, views, target = make_model(), make_views(3), make_views(1, seed=2).cameras
    plain = model(views, target)
    for changes in ({"inner_steps": 4}, {"direction": "ascent"}, {"query": "key"}, {"newton_schulz_steps": 0}):
        tried = model.with_memory(**changes)
        assert tried.blocks[0].memory.w1.data_ptr() == model.blocks[0].memory.w1.data_ptr()
        assert not torch.allclose(tried(views, target), plain)
    assert torch.equal(model.with_memory(form="recurrent")(views, target), plain)
    with pytest.raises(ValueError, match=r"no fitting weight blocks\.0\.memory\.w"):
        model.with_memory(expansion=4)


def test_form_does_not_tell_models_apart_but_other_settings_do():
    model = make_model(replace(TINY, memory=variant("v2", head_dim=16))).requires_grad_(False)
    state, target = model.encode(make_views(3)), make_views(1, seed=2).cameras
    assert isinstance(state.layers[0], LastWeightState)
    assert torch.equal(model.with_memory(form="parallel").render(state, target), model.render(state, target))
    with pytest.raises(UserError, match="made by another model"):
        model.with_memory(inner_steps=2).render(state, target)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"form": "parallel"}, "each step depends on the matrices that earlier ones changed and weight_norm"),
        ({"form": "parallel", "updated": "w1"}, "weight_norm divides"),
        ({"form": "parallel", "updated": "w1", "weight_norm": False, "inner_loss": "squared_error"}, "squared_error"),
        ({"kernel": "linear"}, "set memory updated to w1"),
        ({"kernel": "linear", "updated": "w1"}, "needs memory expansion 1, got 2"),
        ({"momentum": 1.0}, "momentum must be in 0..1 without 1"),
        ({"base_lr": 0.0}, "base_lr must be above 0"),
        ({"inner_steps": 0}, "inner_steps must be a whole number of 1 or more"),
        ({"chunks": 1.5}, "chunks must be a whole number"),
        ({"newton_schulz_steps": -1}, "newton_schulz_steps must be a whole number of 0 or more"),
        ({"query": "value"}, "query must be one of own, key, got value"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, told):
    with pytest.raises(ValueError, match=told):
        LaCTConfig(**settings)


def test_variants_have_names():
    assert variant("lact", head_dim=768) == LaCTConfig()
    with pytest.raises(ValueError, match="choose one of lact, v1, v2"):
        variant("v7")
