"""`nvs bench` on a model that takes no time, and what it refuses."""

import pytest
import torch

from apps.cli import main
from nvs import LaCT, ModelConfig, save_model
from nvs.memory import LaCTConfig

SMALL = ["--dim", "64", "--layers", "1", "--image-size", "16", "16", "--inputs", "2", "--runs", "1"]


def test_every_job_is_timed(capsys):
    threads = torch.get_num_threads()
    try:
        assert main(["bench", *SMALL, "--threads", "1"]) == 0
    finally:
        torch.set_num_threads(threads)
    told = capsys.readouterr().out
    assert "2 input views of 16x16, 1 CPU threads, 1 interleaved runs" in told
    for job in ("encode", "render"):
        assert all(f"{job}, {way}" in told for way in ("plain fp32", "fp32", "bf16"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threads", "0"], "--threads 0 is not possible"),
        (["--runs", "0"], "--runs 0 is not possible"),
        (["--inputs", "-1"], "--inputs -1 is not possible"),
        (["--dim", "100"], "model dim 100 must be a multiple"),
        (["--layers", "0"], "layers must be a whole number of 1 or more"),
        (["--expansion", "0"], "expansion must be a whole number of 1 or more"),
        (["--image-size", "0", "0"], "0x0 cannot be cut into patches"),
        (["--image-size", "30", "32"], "nearest size is 32x32"),
        (["--checkpoint", "none.pt"], "there is no checkpoint"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(capsys, words, message):
    assert main(["bench", *SMALL, *words]) == 1
    told = capsys.readouterr().err
    assert message in told and "unexpected" not in told and told.count("\n") == 1


def test_a_model_that_the_plain_version_does_not_know(tmp_path, capsys):
    config = ModelConfig(dim=32, layers=1, attention_head_dim=32, memory=LaCTConfig(head_dim=32), frustum_points=2)
    save_model(LaCT(config), tmp_path / "other.safetensors")
    assert main(["bench", "--checkpoint", str(tmp_path / "other.safetensors"), "--runs", "1"]) == 1
    assert "cannot be timed" in capsys.readouterr().err
