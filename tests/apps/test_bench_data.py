"""`nvs bench data` as a person types it."""

import re

import pytest

from apps.cli import main


@pytest.mark.slow
def test_speeds_of_all_sources_are_told(write_capture, capsys):
    capture = write_capture("balls", 6, (16, 16))
    words = ["--scenes", str(capture), "--image-size", "16", "16", "--dim", "32", "--layers", "1", "--batch-size", "1"]
    words += ["--input-views", "2", "--target-views", "1", "--steps", "1", "--rounds", "3", "--seconds", "0.1"]
    assert main(["bench", "data", *words]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"procedural generator, 16x16, 2x2 rays a pixel: \d+ views/s in \d+ processes of one thread, "
        r"\d+ in one process of \d+ threads",
        first,
    )
    assert [line.partition(":")[0] for line in lines] == [
        "captures, photos in memory",
        "captures, photos decoded each time",
        "shards",
        "procedural",
    ]
    for line in lines:
        assert re.search(r": [\d.]+ steps/s, [\d.]+ of [\d.]+ steps/s with one kept batch$", line)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--steps", "0"], "--steps 0"),
        (["--threads", "0"], "--threads 0"),
        (["--batch-size", "0"], "batch_size must be 1 or more"),
        (["--image-size", "20", "20", "--seconds", "0.01"], "20"),
        (["--scenes", "nowhere", "--seconds", "0.01"], "nowhere"),
    ],
)
def test_bad_input_is_told_in_a_sentence(capsys, monkeypatch, words, told):
    monkeypatch.setattr("apps.bench_data.generator_speed", lambda *_: "not timed")
    assert main(["bench", "data", *words]) == 1
    error = capsys.readouterr().err
    assert told in error and "Traceback" not in error and "unexpected" not in error
