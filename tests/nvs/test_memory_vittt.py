"""ViTTT against recorded numbers, autograd and its own laws."""

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

from nvs.memory import Grid, ViTTTConfig, ViTTTMemory
from nvs.memory.vittt import convolution_gradient, convolve, gated_gradients

PARTS = {"query": ("q1", "q2"), "key_value": ("k1", "k2", "v1", "v2")}


def difference(ours: torch.Tensor, recorded: torch.Tensor) -> float:
    norm = recorded.norm()
    return ((ours - recorded).norm() / norm).item() if norm else ours.norm().item()


def in_our_order(fused: torch.Tensor, layer: str) -> torch.Tensor:
    """The rows that one of our projections has of the published fused one."""
    rows = dict(zip(("q1", "k1", "v1", "q2", "k2", "v2"), fused.split([24, 24, 24, 8, 8, 8]), strict=True))
    return torch.cat([rows[name] for name in PARTS[layer]])


@pytest.fixture
def recorded(shared) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(shared / "golden/vittt_block_fp32.safetensors")


@pytest.fixture
def published(recorded) -> ViTTTMemory:
    memory = ViTTTMemory(24, ViTTTConfig(head_dim=8, normalize=False))
    weights = {"w1": recorded["param.w1"][0], "w2": recorded["param.w2"][0], "w3": recorded["param.w3"][:, 0]}
    for kind in ("weight", "bias"):
        weights[f"out.{kind}"] = recorded[f"param.proj.{kind}"]
        weights |= {f"{layer}.{kind}": in_our_order(recorded[f"param.qkv.{kind}"], layer) for layer in PARTS}
    memory.load_state_dict(weights)
    return memory


@pytest.fixture(params=[True, False], ids=["normalised", "published"])
def memory(request) -> ViTTTMemory:
    torch.manual_seed(0)
    memory = ViTTTMemory(8, ViTTTConfig(head_dim=4, normalize=request.param)).double()
    for parameter in memory.parameters():  # the small standard init hides mistakes
        torch.nn.init.normal_(parameter, std=0.6)
    return memory


def tokens(views: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(2, views * 6, 8, generator=torch.Generator().manual_seed(seed)).double()


@pytest.mark.golden
def test_published_output_and_gradients(recorded, published):
    x = recorded["in.x"].clone().requires_grad_(True)
    state = published.update_state(published.init_state(2), x, grid=Grid(6, 5))
    out = published.apply_state(state, x, grid=Grid(6, 5))
    assert difference(out, recorded["out"]) < 1e-5
    (out * torch.cos(torch.arange(out.numel()).view_as(out))).sum().backward()
    gradients = {name: p.grad for name, p in published.named_parameters()}
    expected = {"w1": recorded["grad.w1"][0], "w2": recorded["grad.w2"][0], "w3": recorded["grad.w3"][:, 0]}
    for kind in ("weight", "bias"):
        expected[f"out.{kind}"] = recorded[f"grad.proj.{kind}"]
        expected |= {f"{layer}.{kind}": in_our_order(recorded[f"grad.qkv.{kind}"], layer) for layer in PARTS}
    assert set(gradients) == set(expected)
    assert difference(x.grad, recorded["grad.x"]) < 1e-4
    for name, gradient in gradients.items():
        assert difference(gradient, expected[name]) < 1e-4, name


@pytest.mark.golden
def test_published_inner_updates(recorded, published, monkeypatch):
    k, v = recorded["swiglu.k"], recorded["swiglu.v"]
    k_view, v_view = recorded["dwconv.k"][:, :, None], recorded["dwconv.v"][:, :, None]
    given = iter([(k, k_view), (v, v_view)])
    monkeypatch.setattr(published, "_split", lambda *_: next(given))
    state = published.update_state(published.init_state(2), torch.zeros(2, 30, 24), grid=Grid(6, 5))
    assert difference(state.w1, recorded["swiglu.w1_new"]) < 1e-5
    assert difference(state.w2, recorded["swiglu.w2_new"]) < 1e-5
    assert difference(state.w3.flatten(0, 1), recorded["dwconv.w3_new"][:, 0]) < 1e-5


def test_directions_are_gradients_of_the_inner_loss():
    torch.manual_seed(0)
    k, v = (torch.randn(2, 3, 7, 4, dtype=torch.float64) for _ in range(2))
    w1, w2 = (torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    (((k @ w1) * F.silu(k @ w2)) * v).sum().backward()
    for ours, w in zip(gated_gradients(w1, w2, k, v), (w1, w2), strict=True):
        torch.testing.assert_close(ours, w.grad)
    k, v = (torch.randn(2, 4, 3, 2, 5, dtype=torch.float64) for _ in range(2))
    w3 = torch.randn(2, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    (convolve(k, w3) * v).sum().backward()
    torch.testing.assert_close(convolution_gradient(k, v), w3.grad)


def test_every_view_is_convolved_on_its_own():
    torch.manual_seed(0)
    x, w = torch.randn(2, 4, 3, 2, 5), torch.randn(2, 4, 3, 3)
    for scene in range(2):
        for view in range(3):
            alone = F.conv2d(x[scene, :, view], w[scene, :, None], padding=1, groups=4)
            torch.testing.assert_close(convolve(x, w)[scene, :, view], alone)


def test_views_may_come_in_any_order_and_in_slices(memory):
    x, state = tokens(4), memory.init_state(2)
    whole = memory.update_state(state, x, grid=Grid(2, 3))
    views = x.unflatten(1, (4, 6))
    for other in (
        memory.update_state(state, views[:, [2, 0, 3, 1]].flatten(1, 2), grid=Grid(2, 3)),
        memory.update_state(state, x, slice_tokens=1, grid=Grid(2, 3)),
        memory.update_state(state, x, slice_tokens=14, grid=Grid(2, 3)),
    ):
        for ours, expected in zip(other, whole, strict=True):
            torch.testing.assert_close(ours, expected)


def test_gradients(memory):
    def absorb_and_read(first, second, x):
        state = memory.update_state(memory.init_state(1), first, grid=Grid(2, 3))
        return memory.apply_state(memory.update_state(state, second, grid=Grid(2, 3)), x, grid=Grid(1, 6))

    inputs = [tokens(views, seed=views)[:1].requires_grad_(True) for views in (2, 1, 1)]
    assert torch.autograd.gradcheck(absorb_and_read, inputs, fast_mode=True)


@pytest.mark.parametrize("grid", [None, Grid(2, 4)])
def test_tokens_that_are_no_whole_views_are_refused(memory, grid):
    with pytest.raises(ValueError, match="whole views"):
        memory.update_state(memory.init_state(2), tokens(2), grid=grid)
    with pytest.raises(ValueError, match="whole views"):
        memory.apply_state(memory.init_state(2), tokens(2), grid=grid)
