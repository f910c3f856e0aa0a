"""Laws that every memory layer obeys, inside a whole model."""

from dataclasses import replace

import pytest
import torch
from tiny import TINY, make_model, make_views

import nvs
from nvs.checkpoint import config_from_dict, read_checkpoint
from nvs.memory import CONFIG_TYPES, SoftmaxConfig, SoftmaxMemory, build_memory

CONFIGS = {
    "lact": TINY,
    "softmax": replace(TINY, memory=SoftmaxConfig(head_dim=16)),
}


@pytest.fixture(params=CONFIGS)
def config(request) -> nvs.ModelConfig:
    return CONFIGS[request.param]


def test_every_kind_is_tested():
    assert set(CONFIGS) == set(CONFIG_TYPES)
    assert all(CONFIGS[kind].memory.kind == kind for kind in CONFIGS)


@pytest.mark.parametrize("slice_tokens", [1, 5, 100])
def test_slices_equal_one_pass(config, slice_tokens):
    model = make_model(config, dtype=torch.float64)
    views, target = make_views(5).to(torch.float64), make_views(2, seed=3).cameras.to(torch.float64)
    whole, sliced = model.encode(views), model.encode(views, slice_tokens)
    torch.testing.assert_close(model.render(whole, target), model.render(sliced, target), rtol=1e-9, atol=1e-9)


def test_order_of_input_views_does_not_matter(config):
    model, views, target = make_model(config), make_views(5), make_views(2, seed=3).cameras
    torch.testing.assert_close(model(views, target), model(views.select([3, 0, 4, 2, 1]), target), rtol=1e-4, atol=1e-5)


def test_state_survives_a_file(config, tmp_path):
    model, target = make_model(config), make_views(2, seed=1).cameras
    state = model.encode(make_views(3))
    state.save(tmp_path / "s.safetensors")
    again = nvs.SceneState.load(tmp_path / "s.safetensors")
    assert torch.equal(model.render(state, target), model.render(again, target))


def test_model_survives_a_file(config, tmp_path):
    nvs.save_model(make_model(config), tmp_path / "m.safetensors")
    assert read_checkpoint(tmp_path / "m.safetensors")[0] == config


def test_nothing_absorbed_changes_nothing(config):
    memory = build_memory(config.dim, config.memory)
    state = memory.init_state(2)
    after = memory.update_state(state, torch.zeros(2, 0, config.dim))
    assert all(torch.equal(a, b) for a, b in zip(state, after, strict=True))
    assert torch.isfinite(memory.apply_state(after, torch.randn(2, 3, config.dim))).all()


def test_gradients_reach_every_weight(config):
    model = make_model(config).train()
    model(make_views(3, batch=2), make_views(2, batch=2, seed=1).cameras).square().mean().backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0]


def test_softmax_memory_is_attention_over_all_tokens():
    torch.manual_seed(0)
    memory = SoftmaxMemory(32, SoftmaxConfig(head_dim=16)).double()
    first, second, x = (torch.randn(2, n, 32, dtype=torch.float64) for n in (4, 3, 5))
    state = memory.update_state(memory.update_state(memory.init_state(2), first), second)
    tokens = torch.cat([first, second], dim=1)
    k, v = memory.key_value(tokens).chunk(2, dim=-1)
    q = memory.query(x)
    heads = []
    for h in (slice(0, 16), slice(16, 32)):
        unit = [
            y[..., h] / (y[..., h].square().mean(-1, keepdim=True) + torch.finfo(y.dtype).eps).sqrt() for y in (q, k)
        ]
        heads.append((unit[0] @ unit[1].transpose(1, 2) / 4).softmax(-1) @ v[..., h])
    torch.testing.assert_close(memory.apply_state(state, x), memory.out(torch.cat(heads, -1)))


def test_kinds_are_told_apart_in_saved_configurations():
    assert config_from_dict({"dim": 32, "attention_head_dim": 16, "memory": {"head_dim": 16}}).memory.kind == "lact"
    with pytest.raises(KeyError):
        config_from_dict({"memory": {"kind": "unheard of"}})
