"""The identities that the model lives by."""

from dataclasses import replace

import pytest
import torch
from tiny import TINY, make_model, make_views

import data
import nvs
from data import Cameras, UserError, Views
from nvs.memory import LaCTMemory
from nvs.yardstick import Yardstick


def test_forward_is_render_of_encode():
    model, inputs, targets = make_model(), make_views(4, batch=2), make_views(3, batch=2, seed=1).cameras
    images = model(inputs, targets)
    assert images.shape == (2, 3, 3, 16, 24)
    assert torch.equal(images, model.render(model.encode(inputs), targets))
    assert images.min() >= 0 and images.max() <= 1


def test_scenes_of_a_batch_do_not_mix_and_need_no_batch_axis():
    model, inputs, targets = make_model(), make_views(4, batch=2), make_views(3, batch=2, seed=1).cameras
    together = model(inputs, targets)
    for i in range(2):
        one = Views(inputs.c2w[i], inputs.intrinsics[i], inputs.image_size, inputs.images[i])
        camera = Cameras(targets.c2w[i], targets.intrinsics[i], targets.image_size)
        torch.testing.assert_close(model(one, camera), together[i], rtol=1e-4, atol=1e-5)


def test_order_of_input_views_does_not_matter():
    model, views, target = make_model(), make_views(5), make_views(2, seed=3).cameras
    shuffled = views.select([3, 0, 4, 2, 1])
    torch.testing.assert_close(model(views, target), model(shuffled, target), rtol=1e-4, atol=1e-5)


def test_input_views_are_really_read():
    model, target = make_model(), make_views(2, seed=3).cameras
    assert (model(make_views(4), target) - model(make_views(4, seed=1), target)).abs().max() > 1e-2


@pytest.mark.parametrize("slice_tokens", [1, 5, 6, 7, 100])
def test_slices_equal_one_pass(slice_tokens):
    model = make_model(dtype=torch.float64)
    views, target = make_views(5).to(torch.float64), make_views(2, seed=3).cameras.to(torch.float64)
    whole, sliced = model.encode(views), model.encode(views, slice_tokens)
    for a, b in zip(whole.layers, sliced.layers, strict=True):
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model.render(whole, target), model.render(sliced, target), rtol=1e-9, atol=1e-9)


def test_views_are_rendered_independently():
    model, target = make_model(), make_views(3, seed=3).cameras
    state = model.encode(make_views(4))
    single = torch.cat([model.render(state, target.select(i)) for i in range(3)])
    torch.testing.assert_close(single, model.render(state, target), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("slice_tokens", [1, 7, 12])
def test_rendering_in_slices_equals_one_pass(slice_tokens):
    model, target = make_model(dtype=torch.float64), make_views(3, seed=3).cameras.to(torch.float64)
    state = model.encode(make_views(4).to(torch.float64))
    sliced = model.render(state, target, slice_tokens)
    torch.testing.assert_close(sliced, model.render(state, target), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_plain_version_agrees(overlap):
    model = make_model(replace(TINY, decode_overlap=overlap))
    inputs, targets = make_views(4, batch=2), make_views(3, batch=2, seed=1).cameras
    plain = Yardstick(model)
    states = plain.encode(inputs)
    state = model.encode(inputs)
    for ours, theirs in zip(state.layers, states, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.flatten(0, 1), b, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.render(state, targets), plain.render(states, targets), rtol=1e-4, atol=1e-5)


def test_extend_absorbs_a_second_chunk():
    model, first, second = make_model(), make_views(3), make_views(2, seed=2)
    state = model.extend(model.encode(first), second)
    assert state.cameras.num_views == 5
    assert state.num_bytes == model.encode(first).num_bytes
    x = model._embed(second.add_batch().cameras, second.add_batch().images)
    for i, block in enumerate(model.blocks):  # the definition: the same step, started from the state reached so far
        before = type(state.layers[i])(*(w[None] for w in model.encode(first).layers[i]))
        x, after = block.absorb(x, before)
        x = block.read(x, after)
        for a, b in zip(state.layers[i], after, strict=True):
            torch.testing.assert_close(a, b[0], rtol=1e-5, atol=1e-6)


def test_views_of_another_frame_are_not_absorbed(capture):
    model, scene = make_model(), data.open_scene(capture)
    fitted = scene.normalize([0, 1])
    state = model.encode(fitted.load([0, 1], (16, 24)))
    assert model.extend(state, fitted.load([2], (16, 24))).num_inputs == 3
    with pytest.raises(UserError, match="another frame"):
        model.extend(state, scene.load([2], (16, 24)))


def test_nothing_absorbed_changes_nothing():
    memory = LaCTMemory(32, TINY.memory)
    state = memory.init_state(2)
    after = memory.update_state(state, torch.zeros(2, 0, 32))
    assert all(torch.equal(a, b) for a, b in zip(state, after, strict=True))


def test_rendering_computes_no_keys_values_or_rates_and_encode_stops_after_the_last_update():
    model = make_model()
    calls: list[str] = []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda m, a, o, name=name: calls.append(name))
    state = model.encode(make_views(2))
    last = f"blocks.{TINY.layers - 1}"
    assert f"{last}.memory.key_value" in calls
    assert not {f"{last}.memory.query", f"{last}.memory.out", f"{last}.mlp"} & set(calls)
    calls.clear()
    model.render(state, make_views(2).cameras)
    assert not [c for c in calls if c.endswith(("key_value", "rates"))]


def test_another_memory_layer_can_take_the_place():
    class Averaging(torch.nn.Module):
        """Remembers the mean token: three verbs are all that the model asks for."""

        order_matters = whole_views = False

        def init_state(self, batch):
            return LaCTMemory(32, TINY.memory).init_state(batch)._replace(w0=torch.zeros(batch, 32))

        def update_state(self, state, x, slice_tokens=None, grid=None):
            return state._replace(w0=state.w0 + x.mean(1))

        def apply_state(self, state, x, grid=None):
            return state.w0[:, None].expand_as(x)

    model = make_model()
    for block in model.blocks:
        block.memory = Averaging()
    assert model(make_views(4), make_views(2).cameras).shape == (2, 3, 16, 24)


def test_precision_of_products():
    model, views, target = make_model(), make_views(4), make_views(2, seed=3).cameras
    state = model.encode(views)
    exact = model.render(state, target)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        allowed = 1.5 * (model.render(model.encode(views), target) - exact).norm()
    model.use_precision("bf16")
    with torch.no_grad():
        again = model.encode(views)
        for one in (again, state):  # states go from one precision to the other
            assert one.fingerprint == state.fingerprint
            assert {x.dtype for layer in one.layers for x in layer} == {torch.float32}
            assert (model.render(one, target) - exact).norm() < allowed
    assert model.blocks[0].mlp.up.weight.dtype == torch.bfloat16
    assert model.blocks[0].memory.rates.weight.dtype == torch.float32
    with pytest.raises(ValueError, match="load the model again"):
        model.use_precision("fp32")


def test_activation_checkpointing_changes_no_gradient():
    grads = []
    for checkpointing in (False, True):
        model = make_model().train()
        model.activation_checkpointing = checkpointing
        model(make_views(3, batch=2), make_views(2, batch=2).cameras).square().mean().backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)


def test_frustum_features_are_seen_and_off_by_default():
    assert nvs.ModelConfig().frustum_points == 0
    model = make_model(replace(TINY, frustum_points=4))
    assert model.embed_frustum is not None and model.embed_frustum.weight.grad is None
    model(make_views(3), make_views(2).cameras).sum().backward()
    assert model.embed_frustum.weight.grad.abs().max() > 0


def test_bad_input_is_told_plainly():
    model = make_model()
    with pytest.raises(UserError, match="30x24 cannot be cut into patches of 8x8 pixels; the nearest size is 32x24"):
        model.encode(make_views(2, size=(30, 24)))
    with pytest.raises(UserError, match="no input view"):
        model.encode(make_views(2).select([]))
    with pytest.raises(UserError, match="made by another model"):
        make_model(seed=1).render(model.encode(make_views(2)), make_views(2).cameras)
    with pytest.raises(ValueError, match="batch axis"):
        model.render(model.encode(make_views(2, batch=1)), make_views(2).cameras)
    with pytest.raises(UserError, match="slice of 0 tokens"):
        model.encode(make_views(2), slice_tokens=0)
    with pytest.raises(ValueError, match="multiple of attention_head_dim"):
        nvs.ModelConfig(dim=100)
