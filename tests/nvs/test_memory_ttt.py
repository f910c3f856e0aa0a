"""TTT-Linear and TTT-MLP against recorded numbers, autograd and their definition token by token."""

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

from nvs.memory import TTTLinearConfig, TTTMemory, TTTMLPConfig
from nvs.memory.ttt import causal_pass, inner_gradients, inner_read

CONFIGS = {
    "linear": TTTLinearConfig(head_dim=8),
    "mlp": TTTMLPConfig(head_dim=8, expansion=2),
    "linear in mini-batches": TTTLinearConfig(head_dim=8, mini_batch=3),
    "mlp in mini-batches": TTTMLPConfig(head_dim=8, expansion=2, mini_batch=3),
}


@pytest.fixture(params=CONFIGS)
def memory(request) -> TTTMemory:
    torch.manual_seed(0)
    memory = TTTMemory(16, CONFIGS[request.param]).double()
    for parameter in memory.parameters():  # the small standard init hides mistakes
        torch.nn.init.normal_(parameter, std=0.4)
    return memory


def tokens(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(2, count, 16, generator=torch.Generator().manual_seed(seed)).double()


def difference(ours: torch.Tensor, recorded: torch.Tensor) -> float:
    return ((ours - recorded).norm() / recorded.norm()).item()


@pytest.mark.golden
@pytest.mark.parametrize("kind", ["ttt_linear", "ttt_mlp"])
def test_published_outputs_and_weights(shared, kind):
    recorded = safetensors.torch.load_file(shared / "golden/ttt_linear_mlp_fp32.safetensors")
    names = ["W1", "b1", "W2", "b2"][: 2 if kind == "ttt_linear" else 4]

    def recording(name: str) -> torch.Tensor:
        return recorded[f"{kind}.in.{name}"]

    q, k, v = (recording(name).flatten(2, 3) for name in ("XQ", "XK", "XV"))
    rates = recording("ttt_lr_eta").transpose(-1, -2).flatten(2, 3)
    norm = recording("ttt_norm_weight")[:, None], recording("ttt_norm_bias")[:, None]
    weights = [recording(name).expand(2, *recording(name).shape) for name in names]
    layers = list(zip(weights[::2], weights[1::2], strict=True))
    read, layers = causal_pass(layers, q, k, v - k, rates, *norm, mini_batch=8)
    assert difference(read.transpose(1, 2).flatten(2), recorded[f"{kind}.out"]) < 1e-5
    for name, ours in zip(names, [x for layer in layers for x in layer], strict=True):
        assert difference(ours, recorded[f"{kind}.last.{name}_states"]) < 1e-5, name


def test_gradients_are_those_of_the_inner_loss(memory):
    layers = memory._layers(memory.init_state(2))
    k, target = (torch.randn(2, 2, 5, 8, dtype=torch.float64) for _ in range(2))
    leaves = [[x.detach().clone().requires_grad_(True) for x in layer] for layer in layers]
    z = k
    for i, (w, b) in enumerate(leaves):
        z = (F.gelu(z, approximate="tanh") if i else z) @ w + b
    answer = F.layer_norm(z, (8,), eps=1e-6) * memory.gain + memory.bias
    ((answer - target).square().sum() / 2).backward()
    for (x, g), (w, b) in zip(inner_gradients(layers, k, target, memory.gain, memory.bias), leaves, strict=True):
        torch.testing.assert_close(x.transpose(-1, -2) @ g, w.grad)
        torch.testing.assert_close(g.sum(2, keepdim=True), b.grad)


def test_an_update_lowers_the_inner_loss(memory):
    x = tokens(12)
    k, target, _ = memory._lessons(x)

    def loss(state) -> float:
        answer = inner_read(memory._layers(state), k, memory.gain, memory.bias) - k
        return (answer - target).square().mean().item()

    before = memory.init_state(2)
    assert loss(memory.update_state(before, x)) < loss(before)


def test_causal_form_is_an_update_before_every_read(memory):
    x, size = tokens(8), memory.config.mini_batch or 8
    reads, last = memory.read_while_absorbing(memory.init_state(2), x)
    state = memory.init_state(2)
    for start in range(0, 8, size):
        for n in range(start, min(start + size, 8)):
            now = memory.update_state(state, x[:, start : n + 1])
            torch.testing.assert_close(reads[:, n : n + 1], memory.apply_state(now, x[:, n : n + 1]))
        state = now
    for ours, expected in zip(last, state, strict=True):
        torch.testing.assert_close(ours, expected)


def test_only_mini_batches_depend_on_the_order_of_tokens(memory):
    x, state = tokens(8), memory.init_state(2)
    change = memory.update_state(state, x).w1 - memory.update_state(state, x.flip(1)).w1
    assert memory.order_matters == (change.abs().max() > 1e-9) == (memory.config.mini_batch > 0)


def test_gradients(memory):
    def absorb_and_read(first, second, x):
        state = memory.update_state(memory.update_state(memory.init_state(1), first), second)
        return memory.apply_state(state, x)

    inputs = [tokens(n, seed=n)[:1].requires_grad_(True) for n in (4, 3, 2)]
    assert torch.autograd.gradcheck(absorb_and_read, inputs, fast_mode=True)


@pytest.mark.parametrize(
    ("config", "values", "told"),
    [
        (TTTLinearConfig, {"base_lr": 0.0}, "base_lr"),
        (TTTLinearConfig, {"mini_batch": -1}, "mini_batch"),
        (TTTMLPConfig, {"expansion": 0}, "expansion"),
    ],
)
def test_impossible_settings_are_refused(config, values, told):
    with pytest.raises(ValueError, match=told):
        config(**values)
