"""The command `nvs`: finds the function of a command, runs it and tells failures in plain words.

Nothing heavy is imported before a command is known, so that `nvs --help` answers at once.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import NamedTuple

from apps import __version__


class Command(NamedTuple):
    """Where a command lives and what it is for, in one line.

    With `by_input` the function is one that returns the function to run, for the words of the command line; with
    `by_word` it decides by the first of them, which then is part of the command's name.
    """

    module: str
    function: str
    purpose: str
    by_input: bool = False
    by_word: bool = False
    words_optional: bool = False
    """Whether all positional words can be left out."""


COMMANDS = {
    "demo": Command("apps.demo", "demo", "render novel views of a shipped capture with the shipped model"),
    "train": Command("apps.train", "train", "train a model on captures"),
    "eval": Command("apps.eval", "eval_", "PSNR, SSIM and LPIPS of a model on captures"),
    "encode": Command("apps.encode", "encode", "turn the photos of a capture into a scene state"),
    "render": Command("apps.render", "render", "novel views of a capture or a scene state, as video, gif or pictures"),
    "view": Command("apps.view", "view", "look around scenes in the browser", words_optional=True),
    "prepare": Command("apps.prepare", "function_for", "make captures of photos, meshes or nothing", by_input=True),
    "inspect": Command("apps.inspect", "inspect", "tell what a capture, a checkpoint or a scene state is"),
    "convert": Command("apps.convert", "convert", "write a capture or a checkpoint in another format"),
    "ablate": Command("apps.ablate", "ablate", "train memory layers alike and compare them in one table"),
    "analyze": Command("apps.analyze", "analyze", "look into the memory of a checkpoint: a page with plots"),
    "bench": Command("apps.bench", "function_for", "time this machine at the model, or what a word says", by_word=True),
}

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

EXAMPLES = """examples:
  nvs demo
  nvs encode demo my_capture -o scene.safetensors
  nvs render demo scene.safetensors --trajectory orbit -o orbit.mp4
"""


def main(args: list[str] | None = None) -> int:
    """Run `nvs` with `args` (those of the process by default) and return the exit code.

    0 is done, 1 a failure that was told on stderr, 130 an interruption with Ctrl-C. 2 is wrong usage: an unknown
    command, option or choice, a missing argument, a value that cannot be read. A value that can be read but does not
    fit, such as a number out of range or a file that is not there, is a failure.
    """
    words = list(sys.argv[1:] if args is None else args)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        # The name of a file may hold bytes that are no text, or letters that the terminal cannot show.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _dispatch(words)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (`nvs ... | head`); Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"nvs: {explain(error)}", file=sys.stderr)
        from data import UsageError

        return 2 if isinstance(error, UsageError) else 1


def explain(error: Exception) -> str:
    """One or two plain sentences about a failure."""
    from data import UserError
    from kernels import BackendError

    if isinstance(error, UserError | BackendError):
        return str(error)
    text = " ".join(str(error).split())
    if any(map(_is_disk_full, _with_causes(error))):
        return "the disk is full: free some space or choose another place with --output"
    if isinstance(error, OSError) and error.strerror:
        places = [str(x) for x in (error.filename, error.filename2) if x is not None]
        return f"{' -> '.join(places) or 'a file'}: {error.strerror.lower()}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out of memory: use fewer or smaller views, or lower --views-per-batch and --slice-tokens"
    return f"unexpected {type(error).__name__}: {text} (run again with --debug to see where)"


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it came from."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def _is_disk_full(error: BaseException) -> bool:
    """Whether a disk, a quota or a limit for files is used up; libraries tell some of these as text only."""
    if isinstance(error, OSError):
        return error.errno in DISK_FULL
    # PyTorch's writer of .pt files loses the cause and says that it stands at another place than it should.
    words = [os.strerror(number) for number in DISK_FULL]
    return "inline_container" in str(error) or any(word in str(error) for word in words)


def function_of(name: str, words: list[str]) -> tuple[Callable[..., None], str, list[str]]:
    """The function that runs command `name` on these words, its full name, and the words that are left for it."""
    command = COMMANDS[name]
    function = getattr(importlib.import_module(command.module), command.function)
    if command.by_input or command.by_word:
        function = function(words)
    if command.by_word and words and not words[0].startswith("-"):
        name, words = f"{name} {words[0]}", words[1:]
    return function, name, words


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] == "--version":
        print(f"nvs {__version__}")
        return 0
    name, *rest = words
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(COMMANDS)}."
        print(f"nvs: there is no command {name}; {hint}", file=sys.stderr)
        return 2
    from apps.arguments import run_command

    try:
        run_command(*function_of(name, rest), words_optional=COMMANDS[name].words_optional)
    except SystemExit as end:
        # The parser leaves this way after --help and after wrong usage.
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    sys.stdout.flush()
    return 0


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.purpose}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: nvs COMMAND ... (nvs COMMAND --help tells its options and gives an example)",
            "",
            "Novel-view synthesis: encode a scene once from a few posed photos, then render it from anywhere.",
            "",
            "commands:",
            *lines,
            "",
            EXAMPLES,
            "A switch such as --overwrite is turned off again, if a config file turns it on, by --no-overwrite.",
            "--version tells the version; --debug shows the traceback of a failure.",
        ]
    )
