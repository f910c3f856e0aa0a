"""The command frame: how words become arguments, and how failures are told."""

import errno
import os
import re
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from apps import cli
from apps.arguments import run_command
from data import UsageError, UserError

HEAVY = ("torch", "numpy", "lightning", "jsonargparse", "kornia", "rich", "open3d")


@dataclass(frozen=True)
class Config:
    """A config that refuses one value."""

    dim: int = 8
    """Width, in channels."""
    sizes: tuple[int, int] = (4, 4)

    def __post_init__(self):
        if self.dim % 2:
            raise ValueError(f"dim {self.dim} is odd: use {self.dim + 1}")


def sample(
    checkpoint: str,
    scenes: list[str],
    output: str = "out",
    image_size: tuple[int, int] | None = None,
    frames: list[int] | None = None,
    seconds: float = 2.0,
    fast: bool = False,
    use_ema: bool = True,
    dtype: Literal["float32", "bfloat16"] = "float32",
    model: Config = Config(),
) -> None:
    """Do something with scenes.

      nvs sample model.pt a b --image-size 64 48

    Args:
        checkpoint: The file of a model.
        image_size: Height and width in pixels.
    """
    seen.append(locals())


seen: list[dict] = []


@pytest.fixture
def call():
    """Run `nvs sample ...`; return the arguments that the function got."""

    def run(*words: str) -> dict:
        seen.clear()
        run_command(sample, "sample", list(words))
        return seen[0]

    return run


@pytest.fixture
def fail(monkeypatch):
    """A function that runs `nvs broken` with a command that raises the given error, and returns the exit code."""

    def run(error: BaseException, *words: str) -> int:
        def broken() -> None:
            raise error

        monkeypatch.setitem(cli.COMMANDS, "broken", cli.Command(__name__, "broken", "fails"))
        monkeypatch.setitem(sys.modules, __name__, type(sys)(__name__))
        monkeypatch.setattr(sys.modules[__name__], "broken", broken, raising=False)
        return cli.main(["broken", *words])

    return run


class TestArguments:
    def test_words_become_typed_values(self, call):
        got = call(
            "m.pt", "a", "10", "-o", "there", "--image-size", "64", "48", "--frames", "0", "5", "--seconds", "-1.5"
        )
        assert (got["checkpoint"], got["scenes"], got["output"]) == ("m.pt", ["a", "10"], "there")
        assert got["image_size"] == (64, 48)
        assert got["frames"] == [0, 5]
        assert got["seconds"] == -1.5

    @pytest.mark.parametrize("spelling", ["--image-size=[64,48]", "--image_size=[64, 48]", "--image-size [64,48]"])
    def test_other_spellings_of_a_pair(self, call, spelling):
        assert call("m.pt", "a", *spelling.split(maxsplit=1) if "=" not in spelling else [spelling])["image_size"] == (
            64,
            48,
        )

    def test_options_may_stand_anywhere(self, call):
        got = call("--image-size", "64", "48", "--fast", "m.pt", "--no-use-ema", "a", "b")
        assert got["scenes"] == ["a", "b"]
        assert got["fast"] and not got["use_ema"]

    def test_switches(self, call):
        assert call("m.pt", "a")["fast"] is False
        assert call("m.pt", "a", "--fast", "false", "--use-ema")["fast"] is False

    def test_names_with_spaces_and_quotes(self, call):
        assert call("m.pt", "my scene", 'a"b, c')["scenes"] == ["my scene", 'a"b, c']

    def test_names_in_any_script(self, call):
        names = ["sc\U0001f600", "caf\u00e9", "\u6771\u4eac", "a\x85b", "back\\slash", "tab\t", "null", "1: [2"]
        assert call("m.pt", *names)["scenes"] == names

    def test_names_that_are_no_text_are_refused_in_a_list(self):
        with pytest.raises(UserError, match=r"caf\\udce9 is no text in UTF-8: rename it"):
            run_command(sample, "sample", ["m.pt", os.fsdecode(b"caf\xe9"), "b"])

    def test_nested_options_and_config_file(self, call, tmp_path):
        file = tmp_path / "c.yaml"
        file.write_text("model:\n  dim: 32\n  sizes: [2, 3]\n")
        assert call("m.pt", "a", "--config", str(file), "--model.sizes", "5", "6")["model"] == Config(32, (5, 6))

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("m.pt", "scenes"),
            ("m.pt a --dtype int8", "--dtype takes one of float32, bfloat16, not int8"),
            ("m.pt a --image-size 64", "--image-size takes 2 values but 1 was given"),
            ("m.pt a --image-size 64 x", "--image-size takes whole numbers, not x"),
            ("m.pt a --seconds soon", "--seconds takes a number, not soon"),
            ("m.pt a --output", "--output takes a value but none was given"),
            ("m.pt a --imagesize 3 4", "no option --imagesize; did you mean --image-size"),
            ("m.pt a --model.dim wide", "--model.dim takes a whole number, not wide"),
        ],
    )
    def test_wrong_usage_is_one_sentence(self, capsys, words, message):
        with pytest.raises(SystemExit) as end:
            run_command(sample, "sample", words.split())
        assert end.value.code == 2
        told = capsys.readouterr().err
        assert message in told and told.count("\n") == 1 and told.endswith("(see nvs sample --help)\n")

    def test_refused_config_is_told_as_it_is(self):
        with pytest.raises(UserError, match="dim 7 is odd: use 8"):
            run_command(sample, "sample", ["m.pt", "a", "--model.dim", "7"])

    def test_missing_config_file(self):
        with pytest.raises(FileNotFoundError, match=r"nothing\.yaml"):
            run_command(sample, "sample", ["m.pt", "a", "--config", "nothing.yaml"])

    def test_config_file_that_is_no_text(self, tmp_path):
        (tmp_path / "c.yaml").write_bytes(b"seconds: 1 # \xff\n")
        with pytest.raises(UserError, match=r"c\.yaml is not text in UTF-8"):
            run_command(sample, "sample", ["m.pt", "a", "--config", str(tmp_path / "c.yaml")])

    def test_help_shows_example_defaults_and_dashes(self, capsys):
        with pytest.raises(SystemExit) as end:
            run_command(sample, "sample", ["--help"])
        told = capsys.readouterr().out
        assert end.value.code == 0
        assert "  nvs sample model.pt a b --image-size 64 48\n" in told
        assert re.search(r"--image-size N N\s+Height and width in pixels", told)
        assert re.search(r"--seconds SECONDS\s+\(default: 2\.0\)", told)
        assert "-o OUTPUT, --output OUTPUT" in told
        assert re.search(r"--use-ema\s+\(default: on; --no-use-ema turns it off\)", told)
        assert "Width, in channels." in told
        assert "_size" not in told and "<class" not in told


class TestFailures:
    @pytest.mark.parametrize(
        ("error", "sentence"),
        [
            (UserError("No photos are left. Check the folder."), "nvs: No photos are left. Check the folder.\n"),
            (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a.png"), "the disk is full"),
            (RuntimeError("write failed: No space left on device (os error 28)"), "the disk is full"),
            (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "a.png"), "the disk is full"),
            (RuntimeError("I/O error: File too large (os error 27)"), "the disk is full"),
            (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "a.png"), "nvs: a.png: permission denied\n"),
            (MemoryError(), "out of memory"),
            (KeyError("zz"), "nvs: unexpected KeyError: 'zz' (run again with --debug to see where)\n"),
        ],
    )
    def test_is_told_without_traceback(self, fail, capsys, error, sentence):
        assert fail(error) == 1
        told = capsys.readouterr().err
        assert sentence in told
        assert told.count("\n") == 1

    @pytest.mark.parametrize("first", [errno.ENOSPC, errno.EFBIG])
    def test_full_disk_behind_another_error(self, fail, capsys, first):
        try:
            try:
                raise OSError(first, os.strerror(first))
            except OSError:
                raise RuntimeError("the writer is in a bad state")  # noqa: B904
        except RuntimeError as error:
            assert fail(error) == 1
        assert "the disk is full" in capsys.readouterr().err

    @pytest.mark.parametrize("words", [["--debug"], ["--debug", "--debug"]])
    def test_debug_shows_the_traceback(self, fail, capsys, words):
        assert fail(UserError("No."), *words) == 1
        assert "Traceback" in capsys.readouterr().err

    def test_what_cannot_be_understood_is_wrong_usage(self, fail, capsys):
        assert fail(UsageError("Say where it goes with -o FOLDER.")) == 2
        assert capsys.readouterr().err == "nvs: Say where it goes with -o FOLDER.\n"

    @pytest.mark.parametrize(
        ("words", "code"),
        [
            ("render demo gso_toy --trajectory circle", 2),
            ("convert gso_toy", 2),
            ("convert gso_toy x --to shards", 2),
            ("prepare gso_toy", 2),
            ("prepare procedural", 2),
            ("inspect gso_toy --background blurple", 2),
            ("ablate", 2),
            ("view --auth me", 2),
            ("inspect nowhere", 1),
            ("view --port 70000", 1),
            ("demo --frames 0", 1),
        ],
    )
    def test_two_is_what_cannot_be_understood_and_one_what_does_not_fit(self, monkeypatch, words, code):
        monkeypatch.chdir(_root() / "data/captures")
        assert cli.main(words.split()) == code

    def test_interruption(self, fail, capsys):
        assert fail(KeyboardInterrupt()) == 130
        assert capsys.readouterr().err == "stopped\n"

    def test_unknown_command_names_the_nearest(self, capsys):
        assert cli.main(["rendr"]) == 2
        assert "did you mean render?" in capsys.readouterr().err

    def test_closed_pipe_is_quiet(self):
        script = "import sys, apps.cli as c; c._overview = lambda: 'x' * 9_000_000; sys.exit(c.main(['--help']))"
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


class TestOverview:
    def test_every_command_exists_and_has_help(self, capsys):
        for name in cli.COMMANDS:
            assert cli.main([name, "--help"]) == 0, name
            assert f"usage: nvs {name}" in capsys.readouterr().out

    def test_python_m_apps(self):
        out = subprocess.run([sys.executable, "-m", "apps", "--version"], capture_output=True, text=True, cwd=_root())
        assert out.stdout.startswith("nvs 0.") and out.returncode == 0

    def test_help_is_quick(self):
        """Under a second of processor time, and nothing heavy imported."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        code = f"import sys, apps.cli as c; c.main(['--help']); print(sorted(set(sys.modules) & set({HEAVY!r})))"
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=_root(), check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert out.stdout.splitlines()[-1] == "[]"
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0
        assert all(name in out.stdout for name in cli.COMMANDS)

    def test_without_a_command(self, capsys):
        assert cli.main([]) == 2
        assert "commands:" in capsys.readouterr().err


def _root() -> Path:
    return Path(cli.__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("cuda", "nvs: the variable NVS_KERNELS is 'cuda': choose one of auto, reference, triton\n"),
        ("triton", "nvs: the triton backend cannot run here: the tensors are not on a GPU"),
    ],
)
def test_a_kernel_backend_that_cannot_run_is_told(monkeypatch, capsys, tmp_path, backend, message):
    monkeypatch.setenv("NVS_KERNELS", backend)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    capture = Path(__file__).resolve().parents[2] / "data/captures/gso_toy"
    assert cli.main(["encode", "demo", str(capture), "-o", str(tmp_path / "s.safetensors"), "--device", "cpu"]) == 1
    assert message in capsys.readouterr().err


def test_a_mistyped_option_is_not_taken_for_another(capsys):
    assert cli.main(["bench", "scaling", "--run", "3"]) == 2
    assert "--run" in capsys.readouterr().err
