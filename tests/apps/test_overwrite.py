"""No command writes over anything that exists unless --overwrite asks for it."""

import pytest
from tiny import make_model

import nvs
from apps.cli import main


@pytest.fixture
def words(tmp_path, capture):
    nvs.save_model(make_model(), tmp_path / "tiny.safetensors")
    model, scene, out = str(tmp_path / "tiny.safetensors"), str(capture), tmp_path / "out"
    small = ["--image-size", "16", "16"]
    return {
        "encode": ["encode", model, scene, *small, "--views", "2", "-o", f"{out}.safetensors"],
        "render": ["render", model, scene, "--views", "2", *small, "--frames", "1", "-o", f"{out}.gif"],
        "pictures": ["render", model, scene, "--views", "2", *small, "--frames", "1", "-o", f"{out}/"],
        "eval": ["eval", model, scene, *small, "--inputs", "2", "--targets", "1", "-o", str(out)],
        "inspect": ["inspect", scene, "--dump", str(out)],
        "demo": ["demo", "--inputs", "3", "--frames", "1", "-o", str(out)],
        "scene": ["convert", scene, str(out), "--to", "colmap"],
        "checkpoint": ["convert", model, f"{out}.pt"],
    }


@pytest.mark.parametrize(
    "command",
    [
        "encode",
        "render",
        "eval",
        "inspect",
        pytest.param("demo", marks=pytest.mark.slow),
        "scene",
        "checkpoint",
    ],
)
def test_results_are_replaced_only_when_told(words, tmp_path, capsys, command):
    assert main(words[command]) == 0, capsys.readouterr().err
    results = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    times = {p: p.stat().st_mtime_ns for p in results}
    capsys.readouterr()
    assert main(words[command]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()} == times
    assert main([*words[command], "--overwrite"]) == 0
    assert any(p.stat().st_mtime_ns != times[p] for p in results)


def test_pictures_never_get_into_a_folder_that_holds_anything(words, tmp_path, capsys):
    assert main(words["pictures"]) == 0
    for more in ([], ["--overwrite"]):
        assert main([*words["pictures"], *more]) == 1
        assert "choose a new one" in capsys.readouterr().err
