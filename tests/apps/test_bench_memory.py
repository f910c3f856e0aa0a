"""`nvs bench memory` at a tiny size."""

import pytest

from apps.cli import main


def test_prints_every_variant_in_both_forms(capsys):
    words = ["--dim", "16", "--head-dim", "8", "--chunks", "3", "--chunk-tokens", "4", "--runs", "3", "--no-train"]
    assert main(["bench", "memory", *words]) == 0
    told = capsys.readouterr().out
    assert all(f" {name} " in told for name in ("lact", "v1", "v2", "v3", "v4", "v5", "v6"))
    assert "3 chunks of 4 tokens, width 16, heads of 8" in told and "times the throughput of recurrent lact" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--chunks", "0"], "--chunks 0 is not possible"),
        (["--runs", "2"], "--runs 2 is too few"),
        (["--dim", "65"], "65 is not a multiple of the memory's head_dim"),
    ],
)
def test_says_what_is_wrong(words, told, capsys):
    assert main(["bench", "memory", *words]) == 1
    assert told in capsys.readouterr().err
