"""Checkpoints: what is read, what is refused, and what survives the way there and back."""

import pickle
from dataclasses import asdict

import pytest
import safetensors.torch
import torch
from tiny import TINY, make_model, make_views

import nvs
from data import UserError
from nvs.checkpoint import read_checkpoint


@pytest.fixture
def model() -> nvs.LaCT:
    return make_model()


def same_picture(a: nvs.LaCT, b: nvs.LaCT) -> bool:
    views, target = make_views(3), make_views(2, seed=1).cameras
    return torch.equal(a(views, target), b(views, target))


def test_round_trip(model, tmp_path):
    nvs.save_model(model, tmp_path / "m.safetensors")
    again = nvs.load_model(tmp_path / "m.safetensors")
    assert again.config == TINY and same_picture(model, again)
    assert not again.training and not any(p.requires_grad for p in again.parameters())


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
@pytest.mark.parametrize("inner", [False, True])
def test_wrapper_prefixes_are_stripped(model, tmp_path, prefix, inner):
    weights = {}
    for name, x in model.state_dict().items():
        if inner and name.startswith("blocks."):
            name = name.replace("blocks.1.", f"blocks.1.{prefix}_checkpoint_wrapped_module.")
        weights[f"model.{name}" if inner else prefix + name] = x
    torch.save({"state_dict": weights, "nvs": {"model": asdict(model.config)}}, tmp_path / "m.ckpt")
    assert same_picture(model, nvs.load_model(tmp_path / "m.ckpt"))


@pytest.mark.parametrize("change", ["missing", "unknown", "shape"])
def test_weights_that_do_not_fit_are_refused(model, tmp_path, change):
    weights = dict(model.state_dict())
    if change == "missing":
        del weights["blocks.1.memory.w1"]
    elif change == "unknown":
        weights["blocks.9.memory.w1"] = torch.zeros(1)
    else:
        weights["decode.weight"] = torch.zeros(3, 3)
    torch.save({"state_dict": weights, "nvs": {"model": asdict(model.config)}}, tmp_path / "m.ckpt")
    with pytest.raises(UserError, match="does not fit its own configuration"):
        nvs.load_model(tmp_path / "m.ckpt")


def test_code_in_a_pickle_never_runs(model, tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"model": dict(model.state_dict()), "x": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pt", "plain.pt"):
        with pytest.raises(UserError, match="holds Python code"):
            nvs.load_model(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_damaged_and_foreign_files_are_refused(model, tmp_path):
    nvs.save_model(model, tmp_path / "good.safetensors")
    torch.save({"state_dict": dict(model.state_dict())}, tmp_path / "no_config.ckpt")
    for name in ("good.safetensors", "no_config.ckpt"):
        content = (tmp_path / name).read_bytes()
        (tmp_path / f"cut_{name}").write_bytes(content[: len(content) // 2])
        (tmp_path / f"empty_{name}").write_bytes(b"")
    torch.save([1, 2, 3], tmp_path / "list.pt")
    torch.save({"model": {"input_linear.weight": torch.zeros(4, 768)}}, tmp_path / "part.pt")
    torch.save({"state_dict": {"a": torch.zeros(1)}, "nvs": {"model": {"depth": 3}}}, tmp_path / "newer.ckpt")
    torch.save({"state_dict": {"a": torch.zeros(1)}, "nvs": {"model": {"dim": "wide"}}}, tmp_path / "type.ckpt")
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    bad = [p.name for p in tmp_path.iterdir() if p.name != "good.safetensors"]
    for key, value in {"layers": 10**9, "dim": 2**20, "mlp_ratio": 4.0, "memory": 3, "patch_size": None}.items():
        config = asdict(model.config) | {key: value}
        torch.save({"state_dict": dict(model.state_dict()), "nvs": {"model": config}}, tmp_path / f"{key}.ckpt")
        bad.append(f"{key}.ckpt")
    torch.save({"model": {1: torch.zeros(1)}}, tmp_path / "number.pt")
    many = {"input_linear.weight": torch.zeros(4, 768), "blocks.999999999.module_list.0.ln.weight": torch.zeros(4)}
    torch.save({"model": many}, tmp_path / "many.pt")
    bad += ["number.pt", "many.pt"]
    assert len(bad) == 17
    for name in [*bad, "missing.pt", "."]:
        with pytest.raises(UserError) as caught:
            nvs.load_model(tmp_path / name)
        assert str(caught.value).count(". ") <= 1 and "\n" not in str(caught.value), name


def test_unknown_names_list_the_shipped_ones():
    with pytest.raises(UserError, match="shipped name"):
        nvs.load_model("no_such_model")


def test_published_checkpoint_is_recognised_among_other_things_in_the_file(model, tmp_path):
    from nvs.checkpoint import save_published

    save_published(model, tmp_path / "p.pt")
    content = torch.load(tmp_path / "p.pt", weights_only=True)
    torch.save({**content, "optimizer": {"lr": 1.0}, "step": 5}, tmp_path / "p.pt")
    config, weights, trained = read_checkpoint(tmp_path / "p.pt")
    assert trained is None and config.memory.newton_schulz_dtype == "bfloat16"
    assert all(torch.equal(x, model.state_dict()[k]) for k, x in weights.items())
