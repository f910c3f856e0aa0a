"""Long work told step by step: a generator whose end, or whose closing, ends the work too."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Tell = Callable[[str, int, int], None]
"""Takes (what is being done, steps done, steps in all; 0 if unknown)."""


class Progress(NamedTuple):
    """Where a piece of long work stands."""

    text: str
    done: int = 0
    total: int = 0
    """0 if unknown."""
    seconds_left: float | None = None
    file: str | None = None
    """The file that came of it, at the end."""


class Stopped(Exception):
    """Raised inside work that nobody waits for any more."""


def step_by_step(work: Callable[[Tell], T]) -> Generator[Progress, None, T]:
    """Run `work` in a thread of its own and yield what it tells; returns its result.

    Closing the generator makes the next call of `tell` raise `Stopped`, so that the work ends soon.
    """
    told: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    stopped = threading.Event()

    def tell(text: str, done: int, total: int) -> None:
        if stopped.is_set():
            raise Stopped
        told.put(("step", (text, done, total)))

    def run() -> None:
        try:
            told.put(("done", work(tell)))
        except BaseException as error:  # handed to whoever waits for the result
            told.put(("failed", error))

    threading.Thread(target=run, name="nvs-job", daemon=True).start()
    clock = Clock()
    try:
        while True:
            kind, value = told.get()
            if kind == "step":
                yield clock.progress(*value)
            elif kind == "done":
                return value
            else:
                raise value
    finally:
        stopped.set()


class Clock:
    """Tells how long the rest of a step will take, from how long it has taken so far."""

    def __init__(self) -> None:
        self._text, self._start = "", 0.0

    def progress(self, text: str, done: int, total: int) -> Progress:
        """Where the work stands, with the seconds that are left where they can be told."""
        now = time.monotonic()
        if text != self._text:
            self._text, self._start = text, now
        left = (now - self._start) / done * (total - done) if 0 < done <= total else None
        return Progress(text, done, total, left)
