"""Laws that every memory layer obeys. A layer that is registered, and one that configs/memory names, is under test."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny import TINY, make_model, make_views
from torch import nn

import nvs
from nvs import memory as layers
from nvs.checkpoint import read_checkpoint
from nvs.memory import CONFIG_TYPES, LAYERS, Grid, MemoryConfig, RayFrames, SoftmaxConfig, build_memory, scan, variant
from nvs.memory.base import known_rays, scan_one_by_one
from nvs.memory.frames import to_ray

FILES = sorted((Path(__file__).parents[2] / "configs/memory").glob("*.yaml"))
HEAD, HEADS, DIM = 16, 2, 32
PATCHES = (2, 3)


def named_in(file: Path, **settings) -> MemoryConfig:
    """The memory layer that a file of configs/memory names."""
    content = yaml.safe_load(file.read_text())["model"]["memory"]
    config = getattr(layers, content["class_path"].removeprefix("nvs.memory."))
    return config(**{**content.get("init_args", {}), **settings})


def small(config: MemoryConfig, head_dim: int = HEAD) -> MemoryConfig:
    exact = {"newton_schulz_dtype": "float32"} if hasattr(config, "newton_schulz_dtype") else {}
    return replace(config, head_dim=head_dim, **exact)


CONFIGS = {file.stem: small(named_in(file)) for file in FILES}
CONFIGS |= {kind: small(config(head_dim=HEAD)) for kind, config in CONFIG_TYPES.items() if kind not in CONFIGS}  # type: ignore[call-arg]
CONFIGS |= {
    "lact with several steps and momentum": small(variant("lact", inner_steps=2, momentum=0.5)),
    "lact with squared error and chunks": small(variant("lact", inner_loss="squared_error", chunks=3)),
    "lact read with keys": small(variant("lact", query="key", newton_schulz_form="gram")),
    "v2 in parallel with momentum and chunks": small(variant("v2", form="parallel", momentum=0.8, chunks=2)),
    "v6 in parallel": small(variant("v6", form="parallel")),
    "lact in ray frames": small(variant("lact", ray_frames=True)),
    "v2 in parallel with chunks in ray frames": small(variant("v2", form="parallel", chunks=2, ray_frames=True)),
    "softmax in ray frames": SoftmaxConfig(head_dim=HEAD, ray_frames=True),
}
F = 2 * HEAD
NUMBERS = {
    "lact": HEADS * 3 * F * HEAD,
    "v1": HEADS * F * HEAD,
    "v2": HEADS * F * HEAD,
    **{f"v{i}": HEADS * HEAD * HEAD for i in (3, 4, 5, 6)},
    "ttt_linear": HEADS * HEAD * (HEAD + 1),
    "ttt_mlp": HEADS * (2 * HEAD * 4 * HEAD + HEAD + 4 * HEAD),
    "vittt": (2 * HEADS * HEAD + 9) * HEAD,
    "linear": HEADS * HEAD * HEAD,
    "linear_learned": HEADS * 2 * HEAD * HEAD,
    "deltanet": HEADS * HEAD * HEAD,
    "ssd": HEADS * (2 * 64 * HEAD + 1),
    "lact with several steps and momentum": HEADS * 6 * F * HEAD,
    "v2 in parallel with momentum and chunks": HEADS * 2 * F * HEAD,
}
"""Numbers in the state of one layer, as the docstrings of the states and methods say."""


@pytest.fixture(params=CONFIGS)
def name(request) -> str:
    return request.param


@pytest.fixture
def config(name) -> MemoryConfig:
    return CONFIGS[name]


@pytest.fixture
def model_config(config) -> nvs.ModelConfig:
    return replace(TINY, layers=2, memory=config)


def has_map(config: MemoryConfig) -> bool:
    """Whether one update can be read as linear attention: several steps or chunks cannot."""
    once = {getattr(config, setting, 1) for setting in ("inner_steps", "chunks")} == {1}
    return once and hasattr(LAYERS[config.kind][1], "read_map")


def make_memory(config: MemoryConfig, dim: int = DIM, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    memory = build_memory(dim, config)
    assert isinstance(memory, nn.Module)
    for parameter in memory.parameters():  # the small standard init hides mistakes
        if parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.3)
    return memory.double()


def tokens(views: int, dim: int = DIM, batch: int = 2, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, views * PATCHES[0] * PATCHES[1], dim, generator=generator, dtype=torch.float64)


def place(x: torch.Tensor) -> Grid:
    """Tokens of views of 2 x 3 patches, with a ray of its own for each."""
    generator = torch.Generator().manual_seed(5)
    pose = torch.eye(4, dtype=torch.float64).repeat(*x.shape[:2], 1, 1)
    if x.shape[1]:
        pose[..., :3, :3] = torch.linalg.qr(torch.randn(pose[..., :3, :3].shape, generator=generator).double())[0]
        pose[..., :3, 3] = torch.rand(pose[..., :3, 3].shape, generator=generator).double()
    return Grid(*PATCHES, RayFrames(pose, torch.linalg.inv(pose)))


def assert_same(ours, theirs, tolerance: float = 1e-9) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_all_kinds_and_files_are_there():
    assert {config.kind for config in CONFIGS.values()} == set(CONFIG_TYPES)
    assert {"lact", "v1", "v2", "v3", "v4", "v5", "v6", "softmax"} <= {file.stem for file in FILES}


@pytest.mark.parametrize("slice_tokens", [1, 7])
def test_slices_equal_all_at_once(model_config, slice_tokens):
    model = make_model(model_config, dtype=torch.float64)
    views, target = make_views(5).to(torch.float64), make_views(2, seed=3).cameras.to(torch.float64)
    whole, sliced = model.encode(views), model.encode(views, slice_tokens)
    assert_same(sum(sliced.layers, ()), sum(whole.layers, ()))
    assert_same([model.render(sliced, target, slice_tokens)], [model.render(whole, target)])


def test_order_of_views_matters_only_where_the_layer_says_so(model_config):
    model, target = make_model(model_config, dtype=torch.float64), make_views(2, seed=3).cameras.to(torch.float64)
    views = make_views(5).to(torch.float64)
    difference = (model(views, target) - model(views.select([3, 0, 4, 2, 1]), target)).abs().max()
    assert (difference > 1e-6) if model.blocks[0].memory.order_matters else (difference < 1e-9)


def test_files_keep_model_and_state_to_the_bit(model_config, tmp_path):
    model, target = make_model(model_config).requires_grad_(False), make_views(2, seed=1).cameras
    state = model.encode(make_views(3))
    nvs.save_model(model, tmp_path / "m.safetensors")
    state.save(tmp_path / "s.safetensors")
    assert read_checkpoint(tmp_path / "m.safetensors")[0] == model_config
    again = nvs.load_model(tmp_path / "m.safetensors")
    loaded = nvs.SceneState.load(tmp_path / "s.safetensors")
    assert torch.equal(model.render(state, target), again.render(loaded, target))


def test_a_stream_of_chunks_is_one_update_and_one_read_after_the_other(config):
    memory, x = make_memory(config), tokens(5)
    state = memory.init_state(2)
    for chunk in (6, 12, 60):
        after, read = scan(memory, state, x, chunk, place(x))
        expected, expected_read = scan_one_by_one(memory, state, x, chunk, place(x))
        assert_same([*after, read], [*expected, expected_read], 1e-10)
        assert type(after) is type(state)


def test_extending_by_chunks_is_extending_by_one_chunk_after_the_other(model_config):
    model = make_model(model_config, dtype=torch.float64)
    first, later = make_views(2).to(torch.float64), make_views(5, seed=2).to(torch.float64)
    state = model.encode(first)
    together = model.extend(state, later, views_per_chunk=2)
    for part in ([0, 1], [2, 3], [4]):
        state = model.extend(state, later.select(part))
    assert_same(sum(together.layers, ()), sum(state.layers, ()))
    assert together.num_inputs == state.num_inputs == 7


def test_gradients_are_those_of_differences(config):
    memory = make_memory(small(config, 4), 8)
    fixed = {"w0", "w1", "w2"} if getattr(config, "weight_norm", False) else set()  # their norm counts as a constant
    learned = {n: p for n, p in memory.named_parameters() if n not in fixed}

    def absorb_and_read(x, *values):
        for parameter_name, value in zip(learned, values, strict=True):
            owner, _, attribute = parameter_name.rpartition(".")
            vars(memory.get_submodule(owner))["_parameters"][attribute] = value
        first, second = x[:, :12], x[:, 12:]
        state = memory.update_state(memory.init_state(1), first, grid=place(first))
        return memory.apply_state(memory.update_state(state, second, grid=place(second)), second, grid=place(second))

    inputs = [tokens(3, 8, batch=1).requires_grad_(), *(p.detach().clone().requires_grad_() for p in learned.values())]
    assert torch.autograd.gradcheck(absorb_and_read, inputs, fast_mode=True)


def test_gradients_reach_every_weight(model_config):
    model = make_model(model_config).train()
    model(make_views(3, batch=2), make_views(2, batch=2, seed=1).cameras).square().mean().backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0]


def test_size_of_the_state_is_as_documented(name, config):
    memory = make_memory(config)
    fresh, few, many = (
        memory.init_state(1),
        *(
            memory.update_state(memory.init_state(1), x, grid=place(x))
            for x in (tokens(1, batch=1), tokens(4, batch=1))
        ),
    )
    sizes = [sum(x.numel() for x in state) for state in (fresh, few, many)]
    if name in NUMBERS:
        assert sizes == [NUMBERS[name]] * 3
    elif 0 in sum((x.shape for x in fresh), ()):  # it grows with the input, as an axis of 0 tells
        assert sizes == [0, 2 * DIM * 6, 2 * DIM * 24]
    else:
        assert config.kind == "lact" and len(set(sizes)) == 1


@pytest.mark.parametrize("name", [n for n, config in CONFIGS.items() if has_map(config)])
def test_a_map_is_what_the_layer_reads(name):
    memory, earlier, x, asking = make_memory(CONFIGS[name]), tokens(1), tokens(3, seed=2), tokens(2, seed=3)
    for state in (memory.init_state(2), memory.update_state(memory.init_state(2), earlier, grid=place(earlier))):
        base, scores, values = memory.read_map(state, x, asking, place(x), place(asking))
        read = (base + scores @ values).transpose(1, 2)
        assert scores.shape == (2, HEADS, 12, 18)
        if memory.config.wants_rays:
            moved = to_ray(known_rays(place(asking)), read.transpose(1, 2).flatten(0, 1))
            read = moved.unflatten(0, (2, HEADS)).transpose(1, 2)
        normed = memory.read_norm(read) if hasattr(memory, "read_norm") else read
        answer = memory.apply_state(memory.update_state(state, x, grid=place(x)), asking, place(asking))
        torch.testing.assert_close(memory.out(normed.flatten(2)), answer, rtol=1e-7, atol=1e-7)


def test_no_tokens_change_nothing(config):
    memory = make_memory(config)
    some, none = tokens(2), tokens(0)
    for state in (memory.init_state(2), memory.update_state(memory.init_state(2), some, grid=place(some))):
        after = memory.update_state(state, none, grid=place(none))
        assert all(torch.equal(a, b) for a, b in zip(state, after, strict=True))
        assert torch.isfinite(memory.apply_state(after, some, place(some))).all()
        assert memory.apply_state(after, none, place(none)).shape == (2, 0, DIM)


@pytest.mark.slow
def test_layers_compile_as_a_whole(config, no_shape_checks):
    memory, x = make_memory(config), tokens(2)
    torch.compiler.reset()
    update, apply = (
        torch.compile(f, fullgraph=True, backend="eager") for f in (memory.update_state, memory.apply_state)
    )
    state = memory.init_state(2)
    compiled, plain = update(state, x, grid=place(x)), memory.update_state(state, x, grid=place(x))
    assert_same(compiled, plain)
    assert_same([apply(compiled, x, grid=place(x))], [memory.apply_state(plain, x, grid=place(x))])


def test_states_stay_wide_and_finite_under_autocast(config):
    memory, x = make_memory(config).float(), tokens(4).float()
    with torch.autocast("cpu", torch.bfloat16):
        state = memory.update_state(memory.init_state(2), x, grid=place(x))
        read = memory.apply_state(memory.update_state(state, x, grid=place(x)), x, grid=place(x))
    assert {s.dtype for s in state} == {torch.float32} and all(s.isfinite().all() for s in (*state, read))
    exact = memory.apply_state(memory.update_state(state, x, grid=place(x)), x, grid=place(x))
    assert (read.float() - exact).norm() / exact.norm() < 0.1


def test_states_stored_in_16_bits_go_on_in_the_precision_of_the_weights(config):
    memory, x = make_memory(config).float(), tokens(2).float()
    stored = memory.update_state(memory.init_state(2), x, grid=place(x))
    stored = type(stored)(*(s.to(torch.bfloat16) for s in stored))
    assert (
        all(s.dtype == torch.float32 for s in memory.update_state(stored, x, grid=place(x))) or config.kind == "softmax"
    )
    assert memory.apply_state(stored, x, place(x)).dtype == torch.float32
