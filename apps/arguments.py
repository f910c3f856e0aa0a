"""From what a person types to what a typed command function takes.

jsonargparse reads the options off a function's signature and docstring. Here it learns to speak plainly: options are
written with dashes, `--image-size 64 64` and `SCENE SCENE` need no brackets, a switch is `--flag` or `--no-flag`, and
an error is one sentence.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import inspect
import os
import pydoc
import re
import sys
import textwrap
import types
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import is_dataclass
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, auto_cli, set_parsing_settings

SHORT_NAMES = {"output": "-o", "count": "-n"}
CONFIG_HELP = {
    "config": "YAML file with options; give it first, then what shall differ.",
    "print_config": "Print all options as YAML, ready for --config, and exit.",
}
ANY_NUMBER = -1
_stated: ContextVar[frozenset[str]] = ContextVar("_stated", default=frozenset())
_words_optional: ContextVar[bool] = ContextVar("_words_optional", default=False)


def _stands_alone(config: type) -> bool:
    """Whether a config class is no choice among several; of those that share a base, one is chosen by its name."""
    return is_dataclass(config) and not config.__subclasses__() and not any(map(is_dataclass, config.__bases__))


set_parsing_settings(
    docstring_parse_attribute_docstrings=True,
    subclasses_enabled=["is_pure_dataclass"],
    subclasses_disabled=[_stands_alone],
)


def run_command(function: Callable, name: str, args: list[str], words_optional: bool = False) -> Any:
    """Read `args` as the parameters of a command function and call it; wrong usage leaves with exit code 2.

    With `words_optional` the last positional parameter, a list, is empty where there are no words for it.
    """
    summary = (inspect.getdoc(function) or "").partition("\nArgs:")[0].strip()
    positional = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    words = [p.name.upper() + " ..." * str(p.annotation).startswith("list") for p in positional]
    if words_optional:
        words[-1] = f"[{words[-1]}]"
    _words_optional.set(words_optional)
    return auto_cli(
        function,
        args=args,
        parser_class=CommandParser,
        prog=f"nvs {name}",
        usage=" ".join([f"nvs {name}", *words, "[options]"]),
        description=summary,
        formatter_class=HelpFormatter,
    )


def is_stated(name: str) -> bool:
    """Whether the words or the config files of the running command state an option, or any of a group like `model`."""
    return any(key == name or key.startswith(f"{name}.") for key in _stated.get())


class CommandParser(ArgumentParser):
    """A jsonargparse parser whose options read as people write them."""

    def parse_args(self, args=None, namespace=None, **kwargs):
        """Parse the words of a command line."""
        self.allow_abbrev = False  # a mistyped option must not pass for another
        for action in self._actions:
            _rename_options(self, action)
        words = _to_json(self, list(args or []))
        for path in (word.removeprefix("--config=") for word in words if word.startswith("--config=")):
            _check_config_file(path)
        values = super().parse_args(list(words), namespace, **kwargs)
        # Once more without defaults: the first reading cannot tell a stated default from a missing option.
        _stated.set(frozenset(super().parse_args(words, defaults=False).keys()))
        return values

    def get_defaults(self, *args, **kwargs):
        """Of a default config class its name alone: its settings would be carried over to another that is chosen."""
        values = super().get_defaults(*args, **kwargs)
        for default in (values.get(action.dest) for action in self._actions):
            if isinstance(default, Namespace) and "class_path" in default:
                usual = vars(pydoc.locate(default.class_path)())  # type: ignore[operator]
                default.init_args = Namespace({k: v for k, v in vars(default.init_args).items() if v != usual[k]})
        return values

    def instantiate(self, *args, **kwargs):
        """Build the configs; what they refuse is told as it is."""
        try:
            return super().instantiate(*args, **kwargs)
        except ValueError as error:
            from data import UserError

            raise UserError(str(error)) from error

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say in one sentence what is wrong and leave with exit code 2."""
        sys.stderr.write(f"{self.prog}: {_in_plain_words(self, message)} (see {self.prog} --help)\n")
        sys.exit(2)


class HelpFormatter(DefaultHelpFormatter):
    """Help with defaults but without Python types; paragraphs and indented examples stay as they are."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        hidden = _is_config(action) or action.default is False or action.default in (None, argparse.SUPPRESS, "")
        if hidden or not action.option_strings or getattr(action, "_jsonargparse_preexpanded_help", False):
            return text
        off = action.option_strings[-1].replace("--", "--no-", 1)
        default = f"on; {off} turns it off" if action.default is True else action.default
        default = getattr(default, "class_path", default)
        default = " ".join(map(str, default)) if isinstance(default, list | tuple) else default
        return f"{text} (default: {str(default).removeprefix('nvs.memory.').replace('%', '%%')})".strip()

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        return "\n\n".join(p if p.startswith("  ") else textwrap.fill(p, width) for p in paragraphs)


def _check_config_file(path: str) -> None:
    from data import UserError

    if not os.path.isfile(path):
        raise FileNotFoundError(errno.ENOENT, "there is no such config file", path)
    try:
        with open(path, encoding="utf-8") as file:
            file.read()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error.reason}): save it as UTF-8.") from error


def _rename_options(parser: ArgumentParser, action: argparse.Action) -> None:
    """Show `--image_size` as `--image-size`; the spelling with underscores stays valid."""
    if not action.option_strings:
        action.metavar = action.dest.upper()
    if action.dest in CONFIG_HELP:
        action.help = CONFIG_HELP[action.dest]
    if not action.option_strings or _is_config(action):
        return
    shown = [option.replace("_", "-") for option in action.option_strings if not option.endswith("+")]
    if action.dest in SHORT_NAMES:
        shown.insert(0, SHORT_NAMES[action.dest])
    count, element = _values_taken(action)
    word = "N" if element in (int, float) else action.dest.rpartition(".")[2].upper()
    if count == 0:
        action.metavar = ""
    elif count == ANY_NUMBER:
        action.metavar = f"{word} ..."
    elif count > 1:
        action.metavar = " ".join([word] * count)
    for option in shown:
        parser._option_string_actions[option] = action
    action.option_strings = shown


def _to_json(parser: ArgumentParser, words: list[str]) -> list[str]:
    """Join the values of each option into one `--name=value`, and those of the last positional into one list."""
    options: list[str] = []
    free: list[str] = []
    while words:
        word = words.pop(0)
        if not _is_option(word):
            free.append(word)
            continue
        name, equals, value = word.partition("=")
        name, action = _find(parser, name)
        count, element = _values_taken(action)
        if name.startswith("--no-") and name not in parser._option_string_actions:
            options.append(f"--{name.removeprefix('--no-')}=false")
        elif equals:
            options.append(f"{name}={value}")
        elif action.nargs == 0 or action.dest == "print_config":
            options.append(name)
        elif count == 0:
            options.append(f"{name}={words.pop(0) if words and words[0] in ('true', 'false') else 'true'}")
        elif count == 1 or (words and (words[0].startswith("[") or words[0] == "null")):
            options.append(f"{name}={_take(parser, name, words, 1)[0]}")
        else:
            options.append(f"{name}={_list(_take(parser, name, words, count), element)}")
    return options + _join_last(parser, free)


def _take(parser: ArgumentParser, name: str, words: list[str], count: int) -> list[str]:
    """Remove and return the next `count` values, or all up to the next option."""
    values: list[str] = []
    while words and not _is_option(words[0]) and len(values) != count:
        values.append(words.pop(0))
    if len(values) < max(count, 1):
        wanted = {ANY_NUMBER: "at least one value", 1: "a value"}.get(count, f"{count} values")
        parser.error(f"{name} takes {wanted} but {len(values) or 'none'} was given")
    return values


def _join_last(parser: ArgumentParser, values: list[str]) -> list[str]:
    positional = [a for a in parser._actions if not a.option_strings]
    if not positional or len(values) < len(positional) - 1:
        return values
    count, element = _values_taken(positional[-1])
    if len(values) < len(positional):
        return [*values, "[]"] if _words_optional.get() else values
    if count != ANY_NUMBER:
        return values
    start = len(positional) - 1
    return [*values[:start], _list(values[start:], element)]


def _find(parser: ArgumentParser, name: str) -> tuple[str, argparse.Action]:
    """The full name and the action of an option; an unknown one is an error that names the nearest."""
    known = parser._option_string_actions
    if name.startswith("--no-") and name not in known:
        positive = "--" + name.removeprefix("--no-")
        if positive in known and _values_taken(known[positive])[0] == 0:
            return name, known[positive]
    owner = name
    while owner not in known and "." in owner:
        owner = owner.rpartition(".")[0]
    if owner in known:
        return name, known[owner]
    shown = [option for action in parser._actions for option in action.option_strings]
    near = difflib.get_close_matches(name.replace("_", "-"), shown, n=1)
    parser.error(f"there is no option {name}" + (f"; did you mean {near[0]}" if near else ""))


def _values_taken(action: argparse.Action) -> tuple[int, Any]:
    """How many words an option takes (0 for a switch, ANY_NUMBER for a list) and the type of one."""
    hint = getattr(action, "_typehint", None)
    if get_origin(hint) in (Union, types.UnionType):
        options = [h for h in get_args(hint) if h is not type(None)]
        hint = options[0] if len(options) == 1 else None
    if hint is bool:
        return 0, bool
    if get_origin(hint) is list:
        return ANY_NUMBER, get_args(hint)[0]
    if get_origin(hint) is tuple:
        elements = get_args(hint)
        return (ANY_NUMBER if elements[-1] is Ellipsis else len(elements)), elements[0]
    return 1, hint


def _list(values: list[str], element: Any) -> str:
    quoted = values if element in (int, float, bool) else [_quote(v) for v in values]
    return f"[{', '.join(quoted)}]"


def _quote(text: str) -> str:
    """A word as a YAML string: what is not plain ASCII is escaped by its code point, which also keeps emoji whole."""
    if any("\ud800" <= c <= "\udfff" for c in text):
        from data import UserError

        shown = text.encode("utf-8", "backslashreplace").decode()
        raise UserError(f"The name {shown} is no text in UTF-8: rename it, or give the folder around it.")
    plain = (c if " " <= c <= "~" and c not in '"\\' else f"\\U{ord(c):08x}" for c in text)
    return f'"{"".join(plain)}"'


def _is_option(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not re.match(r"-\.?\d", word)


def _is_config(action: argparse.Action) -> bool:
    return action.dest in ("config", "print_config", "help")


def _in_plain_words(parser: ArgumentParser, message: str) -> str:
    """A parser's message as one sentence without Python's names for types."""
    message = " ".join(message.split())
    found = re.match(r'(?:Parser key|Key) "([\w.]+)"(?: element \d+)?: (.*)', message)
    action = next((a for a in parser._actions if found and a.dest == found[1]), None)
    if found is None or action is None:
        return message.rstrip(".")
    name = action.option_strings[-1] if action.option_strings else action.dest.upper()
    given = re.search(r"(?:Got|Given) value: (.+?)(?= - |$)", found[2])
    expected = _expectation(action)
    if given is None or not expected:
        return f"{name}: {found[2].rstrip('.')}"
    return f"{name} takes {expected}, not {given[1]}"


def _expectation(action: argparse.Action) -> str:
    """What an option takes, in words; empty where there is no short way to say it."""
    count, hint = _values_taken(action)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(str(x) for x in get_args(hint))
    word = {bool: "true or false", int: "a whole number", float: "a number"}.get(hint, "")
    return word.replace("a ", "") + "s" if word and count not in (0, 1) else word
