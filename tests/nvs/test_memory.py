"""What softmax attention computes, and how memory layers are named in files."""

import pytest
import torch

from nvs.checkpoint import config_from_dict
from nvs.memory import LAYERS, STATE_TYPES, SoftmaxConfig, SoftmaxMemory


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


def test_names_in_files_are_unambiguous():
    assert all(config.__dataclass_fields__["kind"].default == kind for kind, (config, *_) in LAYERS.items())
    assert len(STATE_TYPES) == sum(len(states) for _, _, *states in LAYERS.values())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"head_dim": 0}, "head_dim must be a whole number of 1 or more, got 0"),
        ({"head_dim": True}, "head_dim must be a whole number of 1 or more, got True"),
        ({"kind": "lact"}, "kind must be one of softmax, got lact"),
    ],
)
def test_impossible_settings_are_refused_by_name(settings, told):
    with pytest.raises(ValueError, match=told):
        SoftmaxConfig(**settings)
    with pytest.raises(ValueError, match="model width 40 is not a multiple of the memory's head_dim 16"):
        SoftmaxMemory(40, SoftmaxConfig(head_dim=16))
