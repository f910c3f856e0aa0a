"""`nvs convert` as a person types it."""

import resource

import torch
from tiny import make_model, make_views

import nvs
from apps.cli import main
from nvs.checkpoint import save_published


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_published_to_ours_and_back(tmp_path, capsys):
    model, views, target = make_model(), make_views(3), make_views(2, seed=1).cameras
    save_published(model, tmp_path / "obj_res256.pt")
    assert run("convert", tmp_path / "obj_res256.pt", tmp_path / "obj.safetensors") == 0
    assert "M parameters" in capsys.readouterr().out
    ours = nvs.load_model(tmp_path / "obj.safetensors")
    assert torch.equal(ours(views, target), nvs.load_model(tmp_path / "obj_res256.pt")(views, target))
    assert run("convert", tmp_path / "obj.safetensors", tmp_path / "back.pt") == 0
    back = torch.load(tmp_path / "back.pt", weights_only=True)["model"]
    first = torch.load(tmp_path / "obj_res256.pt", weights_only=True)["model"]
    assert set(back) == set(first) and all(torch.equal(back[k], first[k]) for k in first)


def test_a_disk_that_gets_full_is_told(tmp_path, capsys):
    nvs.save_model(make_model(), tmp_path / "a.safetensors")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name in ("b.pt", "c.safetensors"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            assert run("convert", tmp_path / "a.safetensors", tmp_path / name) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert "the disk is full" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_half_size(tmp_path):
    nvs.save_model(make_model(), tmp_path / "a.safetensors")
    assert run("convert", tmp_path / "a.safetensors", tmp_path / "b.safetensors", "--dtype", "bfloat16") == 0
    sizes = [(tmp_path / f"{n}.safetensors").stat().st_size for n in "ab"]
    assert 1.8 < sizes[0] / sizes[1] < 2.1


def test_bad_input(tmp_path, capsys):
    nvs.save_model(make_model(), tmp_path / "a.safetensors")
    (tmp_path / "noise.pt").write_bytes(b"\x80\x04noise")
    cases = [
        (("missing.pt", tmp_path / "b.safetensors"), "no checkpoint at missing.pt"),
        ((tmp_path / "noise.pt", tmp_path / "b.safetensors"), "noise.pt is"),
        ((tmp_path / "a.safetensors", tmp_path / "b.onnx"), "give .safetensors (ours) or .pt"),
        ((tmp_path / "a.safetensors", tmp_path / "a.safetensors"), "exists already"),
        ((tmp_path / "a.safetensors", tmp_path / "b.pt", "--dtype", "float16"), "float32"),
        ((tmp_path / "a.safetensors", tmp_path / "noise.pt" / "b.safetensors"), "Nothing can be written"),
    ]
    for words, message in cases:
        assert run("convert", *words) == 1, words
        told = capsys.readouterr().err
        assert message in told and "Traceback" not in told, told
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.safetensors", "noise.pt"]
