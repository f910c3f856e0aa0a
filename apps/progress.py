"""How far long work is: bars with the time left on a terminal, now and then a line where the output goes to a file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LINES = 10
"""A line is printed whenever another tenth of a kind of work is done."""


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """The function that tells, of a kind of work, how many steps are done and how many there are in all."""
    if not sys.stderr.isatty():
        yield ProgressLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("left"), console=Console(stderr=True), transient=True) as bars:
        tasks = {}

        def on_step(doing: str, done: int, total: int) -> None:
            if doing not in tasks:
                tasks[doing] = bars.add_task(doing, total=total)
            bars.update(tasks[doing], completed=done, total=total)

        yield on_step


@contextmanager
def progress_bar(text: str, total: int) -> Iterator[Callable[[], None]]:
    """The function that says that another of `total` steps is done."""
    with progress_bars() as on_step:
        done = 0
        on_step(text, done, total)

        def advance() -> None:
            nonlocal done
            done += 1
            on_step(text, done, total)

        yield advance


class ProgressLines:
    """Prints a line when a kind of work begins and for each tenth of it, with the minutes since the start."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.told: dict[str, int] = {}

    def __call__(self, doing: str, done: int, total: int) -> None:
        """Take note of how far the work is."""
        part = LINES * done // max(total, 1)
        if part <= self.told.get(doing, -1):
            return
        self.told[doing] = part
        minutes = (time.monotonic() - self.start) / 60
        print(f"{doing}: {done} of {total} ({minutes:.1f} min)", file=sys.stderr, flush=True)
