"""Growth of cost with the number of input views."""

import json
import math

import pytest
import torch

from apps.cli import main
from nvs import scaling
from nvs.scaling import Point


def test_growth_is_the_exponent_at_the_end():
    points = [Point("a", n, encode_ms=0.5 * n**2, render_ms=3.0, state_mib=2.0 * n) for n in (2, 4, 16, 32)]
    assert math.isclose(scaling.growth(points, "a", "encode_ms"), 2)
    assert scaling.growth(points, "a", "render_ms") == 0
    assert math.isclose(scaling.growth(points, "a", "state_mib"), 1)
    assert math.isnan(scaling.growth(points[:1], "a", "encode_ms"))


def test_state_of_full_attention_grows_and_the_others_stay():
    models = scaling.random_models(dim=32, layers=1)
    *_, points = scaling.measure(models, (1, 3), (16, 16), runs=1)
    sizes = {name: [p.state_mib for p in points if p.memory == name] for name in models}
    assert sizes["LaCT"][0] == sizes["LaCT"][1] == 3 * 32 * 64 * 4 / 2**20
    assert sizes["linear attention"][0] == sizes["linear attention"][1] == 32 * 32 * 4 / 2**20
    assert math.isclose(sizes["full attention"][1], 3 * sizes["full attention"][0])
    assert all(p.encode_ms > 0 and p.render_ms > 0 for p in points)


def test_command_writes_picture_and_figures(tmp_path, capsys):
    words = ["bench", "scaling", "-o", str(tmp_path / "new/s.png"), "--views", "1", "2", "--dim", "32", "--layers", "1"]
    words += ["--image-size", "16", "16", "--runs", "3", "--threads", str(torch.get_num_threads())]
    assert main(words) == 0
    assert (tmp_path / "new/s.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((tmp_path / "new/s.json").read_text())
    assert len(figures["points"]) == 6 and figures["growth"]["LaCT"]["state_mib"] == 0
    assert "views^" in capsys.readouterr().out
    assert main(words) == 1
    assert "is there already: choose another --output, or add --overwrite" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_told_first(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("nvs.scaling.measure", lambda *_: pytest.fail("was measured"))
    (tmp_path / "file").touch()
    assert main(["bench", "scaling", "-o", str(tmp_path / "file/s.png")]) == 1
    assert "Nothing can be written to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--views", "0"], "--views 0 is not possible: give 1 or more"),
        (["--views", "4", "4"], "Give at least two different numbers of --views"),
        (["--runs", "2"], "--runs 2 is too few"),
        (["--runs", "0"], "--runs 0 is not possible"),
        (["--threads", "0"], "--threads 0 is not possible"),
        (["-o", "s.json"], "s.json is no name for a picture: let --output end with .png"),
        (["--dim", "100", "--image-size", "16", "16"], "These models cannot be built"),
        (["--image-size", "20", "16"], "cannot be cut into patches of 8x8 pixels"),
    ],
)
def test_what_cannot_be_measured_is_told(tmp_path, capsys, words, message):
    assert main(["bench", "scaling", "-o", str(tmp_path / "s.png"), *words]) == 1
    assert message in capsys.readouterr().err.replace("\n", " ")
