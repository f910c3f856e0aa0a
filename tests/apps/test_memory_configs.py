"""Memory layers chosen on the command line: files of configs/memory on top of others, classes by name, options."""

from dataclasses import replace
from pathlib import Path

import pytest

from apps.arguments import run_command
from nvs import ModelConfig
from nvs.memory import LaCTConfig, SoftmaxConfig, TTTLinearConfig, TTTMLPConfig, variant

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted((CONFIGS / "memory").glob("*.yaml"))
BASE = "model: {dim: 128, attention_head_dim: 32, memory: {head_dim: 64}}"


def parse(*words: str | Path) -> ModelConfig:
    """The model that these words choose."""
    found = []

    def command(model: ModelConfig = ModelConfig()) -> None:
        found.append(model)

    run_command(command, "command", [str(word) for word in words])
    return found[0]


@pytest.fixture
def base(tmp_path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    return tmp_path / "base.yaml"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_means_the_same_on_top_of_another(base, file):
    alone, stacked = parse("--config", file).memory, parse("--config", base, "--config", file)
    assert stacked.dim == 128 and 128 % stacked.memory.head_dim == 0
    assert replace(stacked.memory, head_dim=1) == replace(alone, head_dim=1)
    defaults = type(alone)()
    stated = file.read_text()
    for name, value in vars(alone).items():  # options that several layers have are carried over from one to the other
        assert f"{name}: " in stated or value == getattr(defaults, name) or name == "head_dim", name


@pytest.mark.parametrize("name", ["lact", "v1", "v2", "v3", "v4", "v5", "v6"])
def test_variants_have_a_file_each(base, name):
    memory = parse("--config", base, "--config", CONFIGS / f"memory/{name}.yaml").memory
    assert memory == variant(name, head_dim=64)


def test_options_follow_files_and_classes_have_short_names(base):
    words = ["--config", base, "--config", CONFIGS / "memory/v2.yaml", "--model.memory.form", "parallel"]
    assert parse(*words).memory == variant("v2", head_dim=64, form="parallel")
    assert parse("--config", base, "--model.memory", "SoftmaxConfig").memory == SoftmaxConfig(head_dim=64)
    # LaCT's defaults, such as its learning rate and expansion, do not go over to another class.
    assert parse("--config", base, "--model.memory", "TTTMLPConfig").memory == TTTMLPConfig(head_dim=64)
    assert parse("--model.memory", "TTTLinearConfig").memory == TTTLinearConfig()
    back = ["--config", base, "--config", CONFIGS / "memory/softmax.yaml", "--config", CONFIGS / "memory/lact.yaml"]
    assert parse(*back).memory == LaCTConfig(head_dim=32)


def test_help_names_the_default_class(capsys):
    with pytest.raises(SystemExit):
        parse("--help")
    told = capsys.readouterr().out
    assert "(default: LaCTConfig)" in told and "Namespace" not in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--model.memory.form", "paralel"], "--form takes one of recurrent, parallel, not paralel"),
        (["--model.memory.inner_step", "2"], "inner_step"),
        (["--model.memory", "NoSuchConfig"], "NoSuchConfig"),
    ],
)
def test_wrong_options_are_told(base, words, told, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse("--config", base, *words)
    assert stopped.value.code == 2
    assert told in capsys.readouterr().err
