"""`nvs analyze` as a person runs it: a page in one file, its numbers, and what is told when something is wrong."""

import json
import re

import pytest
import torch

import nvs
from apps.cli import main
from nvs.memory import LaCTConfig

SHORT = ("--image-size", "16", "24", "--inputs", "3", "--targets", "2", "--steps", "1", "4", "--view-counts", "1", "3")


@pytest.fixture
def write_model(tmp_path):
    """`write_model(name, **settings)`: a tiny random LaCT model on disk."""

    def write(name: str, **settings) -> str:
        torch.manual_seed(0)
        memory = LaCTConfig(head_dim=16, **settings)
        model = nvs.LaCT(nvs.ModelConfig(dim=32, layers=2, patch_size=8, attention_head_dim=16, memory=memory))
        nvs.save_model(model.eval(), tmp_path / f"{name}.safetensors")
        return str(tmp_path / f"{name}.safetensors")

    return write


def test_the_page_is_one_file_and_tells_the_numbers(write_model, capture, tmp_path, capsys):
    plain, ascent = write_model("plain"), write_model("up", direction="ascent")
    words = ["analyze", plain, str(capture), "-o", str(tmp_path / "report"), "--compare", ascent]
    assert main([*words, *SHORT, "--chunks", "1", "2", "--rounds", "1"]) == 0
    told = capsys.readouterr().err
    assert all(f"inner steps: {done} of 5 (" in told for done in (0, 1, 5)) and "throughput: 6 of 6 (" in told
    page = (tmp_path / "report/report.html").read_text()
    assert "it is no share of a sum" in page
    numbers = json.loads((tmp_path / "report/report.json").read_text())
    assert not re.findall(r"""(?:src|href)=["'](?!data:image/png;base64,)""", page)
    assert "http" not in re.sub(r"base64,[^\"]*", "", page)
    assert page.count("<img") == 6 and page.count("<h2>") == 7
    assert numbers["unanswered"] == {}
    assert numbers["steps"]["psnr"][0] == numbers["psnr"] and len(numbers["steps"]["inner_loss"]) == 2
    up = next(a for a in numbers["alternatives"] if a["name"] == "gradient ascent")
    # The same weights trained the other way are the model with its direction changed.
    assert up["retrained"] == {"up": pytest.approx(up["psnr"], abs=1e-4)} and numbers["others"].keys() == {"up"}
    assert f"{numbers['psnr']:.2f}" in page and f"{up['retrained']['up']:.2f} (up)" in page
    assert all(sum(shares) == pytest.approx(1, abs=1e-3) for shares in numbers["maps"][0]["shares"])
    assert len(numbers["updates"]) == 2 * 3 and numbers["views"]["counts"] == [1, 3]


@pytest.mark.parametrize("name", ["report.html", "report.json"])
def test_a_report_is_not_written_over(write_model, capture, tmp_path, capsys, name):
    (tmp_path / name).write_text("mine")
    words = ["analyze", write_model("plain"), str(capture), "-o", str(tmp_path)]
    assert main(words) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--steps", "0", "1"], "--steps takes numbers of 1 or more"),
        (["--rounds", "0"], "--rounds takes numbers of 1 or more"),
        (["--patch", "7", "0"], "no patch 7 0"),
        (["--target", "5"], "no target view 5"),
        (["--compare", "nowhere.ckpt"], "no checkpoint at nowhere.ckpt"),
        (["--inputs", "20"], "20 input views and at least one held-out photo"),
    ],
)
def test_bad_input_is_told_in_a_sentence(write_model, capture, tmp_path, capsys, monkeypatch, words, told):
    monkeypatch.setattr("nvs.analysis.report.ask", lambda *_: pytest.fail("the long work was begun"))
    begin = ["analyze", write_model("plain"), str(capture), "-o", str(tmp_path / "r"), *SHORT[:3], "--steps", "1"]
    assert main([*begin, "--targets", "2", "--view-counts", "1", "--chunks", "1", *words]) == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert told in message and "unexpected" not in message
    assert not (tmp_path / "r").exists()
