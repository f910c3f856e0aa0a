"""`nvs bench`: how fast this machine is. A word says at what; without one it is the model.

Each word has its own function with its own options, so the function is chosen before options are read.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Sequence

WORDS = {
    "": ("apps.bench_model", "bench_model"),
    "data": ("apps.bench_data", "bench_data"),
    "memory": ("apps.bench_memory", "bench_memory"),
    "scaling": ("apps.bench_scaling", "bench_scaling"),
}
"""Module and function behind `nvs bench WORD`."""


def function_for(words: Sequence[str]) -> Callable[..., None]:
    """The function for the words of a command line, of which the first may say what is timed."""
    word = words[0] if words and not words[0].startswith("-") else ""
    if word not in WORDS:
        near = difflib.get_close_matches(word, WORDS, n=1)
        known = ", ".join(repr(name) for name in WORDS if name)
        hint = f"did you mean {near[0]}?" if near else f"give no word for the model{known and f', or {known}'}"
        print(f"nvs bench: {word} is nothing to time; {hint} (see nvs bench --help)", file=sys.stderr)
        sys.exit(2)
    module, function = WORDS[word]
    return getattr(importlib.import_module(module), function)
