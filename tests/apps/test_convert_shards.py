"""`nvs convert --to shards` as a person types it, and training on the result."""

import json

import pytest

from apps.cli import main
from data import open_scene


def run(*words):
    return main([str(word) for word in words])


def test_captures_of_all_kinds_become_shards(write_capture, tmp_path, capsys):
    write_capture("set/one", 6)
    write_capture("set/two", 5, alpha=True)
    other = write_capture("other", 4)
    (tmp_path / "list.txt").write_text("set/*\n# no\n")
    assert run("convert", tmp_path / "set", other, tmp_path / "out", "--to", "shards", "--image-size", 16, 24) == 0
    assert "3 captures with 15 photos in 1 shards" in capsys.readouterr().out
    assert run("inspect", tmp_path / "out") == 1
    assert "holds 3 scenes (000000.tar/00000000" in capsys.readouterr().err
    assert run("inspect", tmp_path / "out/000000.tar/00000001") == 0
    told = capsys.readouterr().out
    assert "WebDataset shards" in told and "16x24 (height x width)" in told and "packed from two" in told


def test_what_cannot_be_read_is_left_out_and_told(write_capture, tmp_path, capsys):
    write_capture("set/one", 3)
    broken = write_capture("set/two", 3)
    (broken / "transforms.json").write_text("{")
    assert run("convert", tmp_path / "set", tmp_path / "out", "--to", "shards", "--image-size", 8, 8) == 0
    told = capsys.readouterr()
    assert "1 captures could not be packed" in told.out and "two" in told.err
    assert len(json.loads((tmp_path / "out/shards.json").read_text())["shards"][0]["scenes"]) == 1


def test_where_nothing_can_be_packed_the_reason_is_told(capture, tmp_path, capsys):
    (capture / "transforms.json").write_text("{")
    assert run("convert", capture, tmp_path / "out", "--to", "shards", "--image-size", 8, 8) == 1
    told = capsys.readouterr().err
    assert "transforms.json" in told and "no capture to pack" in told


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["CAPTURE", "OUT", "--to", "shards"], "--image-size"),
        (["CAPTURE", "OUT", "--to", "shards", "--image-size", "0", "8"], "two numbers from 1"),
        (["CAPTURE", "OUT", "--to", "shards", "--image-size", "8", "8", "--quality", "0"], "--quality"),
        (["CAPTURE", "OUT", "--to", "shards", "--image-size", "8", "8", "--shard-mb", "0"], "--shard-mb"),
        (["CAPTURE", "CAPTURE", "--to", "shards", "--image-size", "8", "8", "--overwrite"], "is not replaced"),
        (["nowhere", "OUT", "--to", "shards", "--image-size", "8", "8"], "no capture to pack"),
        (["CAPTURE", "CAPTURE", "OUT", "--to", "colmap"], "--to shards"),
        (["CAPTURE", "OUT", "--to", "colmap", "--image-size", "8", "8"], "--to shards"),
        (["CAPTURE", "OUT", "--to", "colmap", "--shard-mb", "9"], "--to shards"),
        (["CAPTURE"], "where the result goes"),
    ],
)
def test_failures_are_told_in_a_sentence(capture, tmp_path, capsys, words, reason):
    places = {"CAPTURE": capture, "OUT": tmp_path / "out"}
    code = 2 if reason in ("--image-size", "where the result goes") else 1
    assert run("convert", *[places.get(word, word) for word in words]) == code
    told = capsys.readouterr().err
    assert reason in told and "Traceback" not in told and not (tmp_path / "out").exists()
    assert open_scene(capture).frames  # still there


def test_overwrite(capture, tmp_path, capsys):
    words = ("convert", capture, tmp_path / "out", "--to", "shards", "--image-size", 8, 8)
    assert run(*words) == 0
    assert run(*words) == 1 and "--overwrite" in capsys.readouterr().err
    assert run(*words, "--overwrite") == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["000000.tar", "shards.json"]


@pytest.mark.slow
def test_a_model_trains_on_shards_and_goes_on(write_capture, tmp_path, capsys):
    for name in ("one", "two", "three"):
        write_capture(f"set/{name}", 5, (16, 16))
    assert run("convert", tmp_path / "set", tmp_path / "sh", "--to", "shards", "--image-size", 16, 16) == 0
    words = ["train", "--data.source", "shards", "--data.shards", tmp_path / "sh", "--data.image-size", 16, 16]
    words += ["--data.input-views", 2, 2, "--data.target-views", 1, 1, "--data.batch-size", 2, "--model.dim", 32]
    words += ["--model.layers", 1, "--model.attention-head-dim", 16, "--model.memory.init_args.head_dim", 16]
    words += ["--training.max-steps", 4, "--training.validate-every", 2, "--data.validation-views", 2, 1]
    words += ["--training.save-every", 2, "--data.workers", 2]
    assert run(*words, "--output", tmp_path / "run") == 0
    assert "3 captures in shards" in capsys.readouterr().err
    assert run("inspect", tmp_path / "run/last.ckpt") == 0
    told = capsys.readouterr().out
    assert "shards: " in told and "trained steps        4" in told
