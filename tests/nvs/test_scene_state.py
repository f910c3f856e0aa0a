"""Scene states are values: saved, loaded, rendered bit-equal, and of a size that does not grow."""

import json
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from tiny import TINY, make_model, make_views

import nvs
from data import UserError


@pytest.fixture
def model() -> nvs.LaCT:
    return make_model()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_round_trip_renders_the_same_bits(model, tmp_path, dtype):
    views = replace(make_views(4), world_to_scene=torch.diag(torch.tensor([2.0, 2, 2, 1], dtype=torch.float64)))
    state = model.encode(views).to(getattr(torch, dtype))
    state.save(tmp_path / "s.safetensors")
    again = nvs.SceneState.load(tmp_path / "s.safetensors")
    target = make_views(3, seed=1).cameras
    assert torch.equal(model.render(state, target), model.render(again, target))
    assert torch.equal(state.world_to_scene, again.world_to_scene) and again.world_to_scene.dtype == torch.float64
    assert torch.equal(state.cameras.c2w, again.cameras.c2w) and again.image_size == (16, 24)
    assert torch.equal(state.thumbnails, again.thumbnails)


def test_storage_type_can_be_chosen_when_saving(model, tmp_path):
    state = model.encode(make_views(4))
    for dtype in ("float32", "bfloat16"):
        state.save(tmp_path / f"{dtype}.safetensors", dtype=dtype)
    small = nvs.SceneState.load(tmp_path / "bfloat16.safetensors")
    assert small.layers[0].w0.dtype == torch.bfloat16 and small.num_bytes * 2 == state.num_bytes
    target = make_views(2, seed=1).cameras
    assert (model.render(small, target) - model.render(state, target)).abs().max() < 0.02


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_state_stored_in_16_bits_can_be_extended(model, tmp_path, dtype):
    state = model.encode(make_views(4))
    state.save(tmp_path / "s.safetensors", dtype=dtype)
    small, more = nvs.SceneState.load(tmp_path / "s.safetensors"), make_views(2, seed=2)
    target = make_views(2, seed=1).cameras
    extended = model.extend(small, more)
    assert extended.layers[0].w0.dtype == torch.float32 and extended.num_inputs == 6
    difference = model.render(extended, target) - model.render(model.extend(state, more), target)
    assert difference.abs().max() < 0.05


def test_a_state_of_another_model_or_of_none_is_refused(model, tmp_path):
    state, target = model.encode(make_views(2)), make_views(2, seed=1).cameras
    anonymous = replace(state, fingerprint="")
    for other in (replace(anonymous, layers=state.layers[:-1]), anonymous):
        foreign = make_model(replace(TINY, dim=48)) if other is anonymous else model
        with pytest.raises(UserError, match="another make or size"):
            foreign.render(other, target)
    in_training = nvs.LaCT(TINY).encode(make_views(2))
    assert in_training.fingerprint == "" and in_training.thumbnails.shape[-2:] == (48, 48)
    with pytest.raises(UserError, match=r"model\.eval"):
        in_training.save(tmp_path / "s.safetensors")


def test_size_does_not_depend_on_the_number_of_views(model, tmp_path):
    sizes = set()
    for count in (1, 7, 40, 64):
        state = model.encode(make_views(count))
        state.save(tmp_path / "s.safetensors")
        tensors = safetensors.torch.load_file(tmp_path / "s.safetensors")
        sizes.add((state.num_bytes, sum(x.numel() * x.element_size() for x in tensors.values())))
        again = nvs.SceneState.load(tmp_path / "s.safetensors")
        assert again.cameras.num_views == min(count, 32) and again.num_inputs == count
    assert len(sizes) == 1


def test_batched_states_are_saved_too(model, tmp_path):
    views, target = make_views(4, batch=2), make_views(2, batch=2, seed=1).cameras
    state = model.encode(views)
    state.save(tmp_path / "s.safetensors")
    assert torch.equal(
        model.render(nvs.SceneState.load(tmp_path / "s.safetensors"), target), model.render(state, target)
    )


def test_fingerprint_tells_models_apart_but_not_storage_types(model, tmp_path):
    nvs.save_model(model, tmp_path / "m32.safetensors")
    nvs.save_model(model, tmp_path / "m16.safetensors", dtype="bfloat16")
    views = make_views(2)
    prints = [nvs.load_model(tmp_path / f).encode(views).fingerprint for f in ("m32.safetensors", "m16.safetensors")]
    assert prints[0] == prints[1] == model.encode(views).fingerprint != make_model(seed=1).encode(views).fingerprint
    with torch.no_grad():
        model.decode.weight.mul_(1.1)
    assert model.encode(views).fingerprint != prints[0]


def test_damaged_and_foreign_files_are_refused(model, tmp_path):
    good = tmp_path / "good.safetensors"
    model.encode(make_views(2)).save(good)
    content = good.read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[: len(content) // 2])
    (tmp_path / "noise.safetensors").write_bytes(b"\xff" * 300)
    (tmp_path / "empty.safetensors").write_bytes(b"")
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    header = {"memory": "Nonsense", "layers": 1, "views": 1, "image_size": [8, 8], "fingerprint": ""}
    for name, head in (("odd", header), ("short", {}), ("list", [])):
        safetensors.torch.save_file(
            {"x": torch.zeros(1)}, tmp_path / f"{name}.safetensors", {"nvs_scene_state": json.dumps(head)}
        )
    for name in ("cut", "noise", "empty", "other", "odd", "short", "list", "missing"):
        with pytest.raises(UserError, match="scene state"):
            nvs.SceneState.load(tmp_path / f"{name}.safetensors")


def test_a_failed_save_leaves_the_old_file(model, tmp_path, monkeypatch):
    path = tmp_path / "s.safetensors"
    state = model.encode(make_views(2))
    state.save(path)
    before = path.read_bytes()

    def full_disk(tensors, file, metadata):
        with open(file, "wb") as half:
            half.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        state.save(path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
