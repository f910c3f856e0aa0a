"""Logs of training runs as a curve and a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from apps import training_curve
from data import UserError
from nvs.training_curve import read_curve

HEADING = "step,train/psnr,val/psnr,minutes\n"


def write_log(run: Path, version: int, rows: str) -> Path:
    """A log as Lightning writes it: training rows have no validation."""
    folder = run / "csv" / f"version_{version}"
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text(HEADING + rows)
    return run


def test_runs_follow_each_other_and_a_resumed_run_counts_from_where_it_was_resumed(tmp_path):
    first = write_log(tmp_path / "first", 0, "10,20,,\n10,,15.5,1\n20,,16,2\n30,,11,3\n")
    write_log(first, 1, "20,,16.5,2.5\n30,,17,4\n")
    second = write_log(tmp_path / "second", 0, "5,,17.5,0.5\n")
    write_log(second, 10, "20,,19,2.5\n")
    write_log(second, 9, "10,,18,1.5\n")
    curve, seams = read_curve([first, second])
    assert [tuple(x) for x in curve] == [(1, 15.5), (2.5, 16.5), (4, 17), (4.5, 17.5), (5.5, 18), (6.5, 19)]
    assert seams == [4]


def test_where_a_run_was_resumed_and_stopped_again_its_earlier_part_stays(tmp_path):
    run = write_log(tmp_path / "run", 0, "10,,15,1\n20,,16,2\n30,,17,3\n")
    write_log(run, 1, "")
    write_log(run, 2, "25,20,,\n")  # resumed from step 24: what came after is no part of the run any more
    write_log(run, 3, "28,,16.8,2.5\n")
    (run / "csv/version_old").mkdir()
    (run / "csv/version_old/metrics.csv").write_text("nonsense")
    assert [tuple(x) for x in read_curve([run])[0]] == [(1, 15), (2, 16), (2.5, 16.8)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADING, "run is not the folder of a training run with validations"),
        (HEADING + "10,20,,\n", "run is not the folder of a training run with validations"),
        ("step,train/psnr\n10,20\n", "run is not the folder of a training run with validations"),
        ("step,val/psnr\n10,20\n", "no column 'minutes': this run is older"),
        (HEADING + "10,,1x,2\n", "metrics.csv is damaged"),
        (HEADING + "10,,15\n", "metrics.csv is damaged"),
    ],
)
def test_a_run_that_tells_nothing_is_named(tmp_path, content, message):
    log = write_log(tmp_path / "run", 0, "") / "csv/version_0/metrics.csv"
    log.write_text(content)
    with pytest.raises(UserError, match=message):
        read_curve([tmp_path / "run"])


def test_the_command_draws_a_line_for_each_model(tmp_path, capsys):
    run = write_log(tmp_path / "run", 0, "10,,15,1\n20,,18,2\n")
    other = write_log(tmp_path / "other", 0, "10,,14,1\n20,,15,2\n")
    assert training_curve.main([str(tmp_path / "one.png"), f"a={run}"]) == 0
    assert training_curve.main([str(tmp_path / "out/two.png"), f"a={run},{run}", f"b={other}"]) == 0
    one, two = (np.asarray(Image.open(tmp_path / name)) for name in ("one.png", "out/two.png"))

    def inked(picture, color):
        return (abs(picture[..., :3].astype(int) - color).max(-1) < 30).sum()

    blue, orange = (0x1F, 0x5A, 0x99), (0xC4, 0x55, 0x2D)
    assert inked(one, blue) > 200 and inked(one, orange) == 0
    assert inked(two, blue) > 200 and inked(two, orange) > 200


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    assert training_curve.main([str(tmp_path / "x.png"), f"a={tmp_path / 'nowhere'}"]) == 1
    assert "nowhere is not the folder of a training run" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()
    for words in (["x.png", "runs/a"], ["x.png", "a=runs/a,"], ["x.png", "a=runs/a", "a=runs/b"], ["a=runs/a", "b=c"]):
        with pytest.raises(SystemExit) as stop:
            training_curve.main(words)
        assert stop.value.code == 2
