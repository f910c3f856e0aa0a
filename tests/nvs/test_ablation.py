"""The table of an ablation: numbers against hand-made ones, and its files."""

import csv
import json
import statistics
from dataclasses import replace

import pytest
import torch
from PIL import Image

import nvs
from data import Views
from nvs.ablation import Ablation, Outcome, Row, Speed, markdown, to_dict, write_tables
from nvs.ablation_chart import write_chart
from nvs.ablation_timing import measure_speeds
from nvs.memory import LaCTConfig, SoftmaxConfig
from nvs.training_config import TrainingConfig

BASE = Row(
    "lact",
    tuple(Outcome("lact", seed, psnr, 600, 1_300_000, 98304, False) for seed, psnr in ((0, 18.0), (1, 19.0))),
    Speed(12.5, 30.0, 4.0),
)
OTHER = Row("softmax", (Outcome("softmax", 1, 19.5, 600, 1_100_000, 2048, True),))
FAILED = Row("ttt_mlp", failure="seed 0: out of memory")


@pytest.fixture
def ablation():
    return Ablation((BASE, OTHER, FAILED), {"network": "4 blocks of width 128"})


def test_mean_and_spread_are_over_the_seeds():
    assert BASE.psnr == 18.5
    assert BASE.spread == statistics.stdev([18.0, 19.0])
    assert OTHER.spread is None and FAILED.psnr is None


def test_gain_is_over_the_seeds_that_both_have():
    # 19.5 - 19.0 at seed 1; the mean of the baseline, 18.5, has another seed in it.
    assert OTHER.gain(BASE) == 0.5
    assert BASE.gain(BASE) == 0.0
    assert FAILED.gain(BASE) is None


def test_all_files_tell_the_same(ablation, tmp_path):
    write_tables(ablation, tmp_path)
    rows = list(csv.DictReader((tmp_path / "ablation.csv").open()))
    plain = json.loads((tmp_path / "ablation.json").read_text())
    assert [r["variant"] for r in rows] == [r["variant"] for r in plain["rows"]] == ["lact", "softmax", "ttt_mlp"]
    assert float(rows[0]["psnr_db"]) == plain["rows"][0]["psnr_db"] == 18.5
    assert rows[2]["psnr_db"] == "" and plain["rows"][2]["psnr_db"] is None
    assert plain["rows"][0]["psnr_by_seed"] == {"0": 18.0, "1": 19.0}
    assert plain == to_dict(ablation)
    text = (tmp_path / "ablation.md").read_text()
    assert "| lact | 18.50 | 0.71 | 2 | +0.00 | 12.5 | 30.0 | 4.00 | 96 | 1,300,000 |" in text
    assert "| softmax | 19.50 | n/a | 1 | +0.50 |" in text and "2 (grows)" in text
    assert "ttt_mlp failed: seed 0: out of memory" in text


def test_every_line_of_the_markdown_table_has_the_same_cells(ablation):
    table = [line for line in markdown(ablation).splitlines() if line.startswith("|")]
    assert len(table) == 5
    assert len({line.count("|") for line in table}) == 1


def test_chart_is_a_picture_also_before_any_run_has_ended(ablation, tmp_path):
    write_chart(ablation, tmp_path / "a.png")
    write_chart(Ablation((FAILED,), {}), tmp_path / "b.png")
    assert Image.open(tmp_path / "a.png").width > Image.open(tmp_path / "a.png").height
    assert Image.open(tmp_path / "b.png").size > (100, 50)


def test_speeds_are_those_of_the_model(monkeypatch):
    """A clock that ticks a millisecond whenever it is read, and half a second whenever the slow model renders."""
    config = nvs.ModelConfig(
        dim=16, layers=1, patch_size=8, attention_head_dim=8, memory=LaCTConfig(head_dim=8, expansion=1)
    )
    models = {
        "fast": nvs.LaCT(config).eval(),
        "slow": nvs.LaCT(replace(config, memory=SoftmaxConfig(head_dim=8))).eval(),
    }
    cameras = nvs.trajectory.orbit(None, 4, radius=2.7, elevation=20.0, image_size=(16, 16))
    views = Views(cameras.c2w, cameras.intrinsics, (16, 16), torch.rand(4, 3, 16, 16))
    now = [0.0]
    render = models["slow"].render

    def slowly(*args):
        now[0] += 0.5
        return render(*args)

    def clock():
        now[0] += 0.001
        return now[0]

    monkeypatch.setattr(models["slow"], "render", slowly)
    monkeypatch.setattr("nvs.ablation_timing.time.perf_counter", clock)
    weights = {k: x.clone() for k, x in models["fast"].state_dict().items()}
    speeds = measure_speeds(models, [(views.select([0, 1]), views.select([2, 3]))] * 3, TrainingConfig(), rounds=3)
    assert speeds["slow"].render_ms == pytest.approx(501 / 2)  # two views
    assert speeds["fast"].render_ms == pytest.approx(1 / 2)
    assert speeds["fast"].samples_per_second == pytest.approx(3 / 0.001)
    assert all(torch.equal(x, weights[k]) for k, x in models["fast"].state_dict().items())
