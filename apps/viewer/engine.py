"""One thread that renders for everybody: the newest camera of each tab in turn, and long work in the gaps.

A tab is a mailbox with one slot: a camera that comes while another waits takes its place. The mailbox is read only when
the thread is free, so that a picture is never rendered for a camera that has been overtaken.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol, TypeVar

import numpy as np

from apps.viewer.frames import Frame, Shot, encode_frame
from apps.viewer.sizes import Size, Speed

MAX_UNDER_WAY = 2
"""Frames of a tab that may be under way; more would only wait in a slow line."""
REST_AFTER = 0.12
"""Seconds without a new camera after which a view is at rest."""
PATIENCE = 1.0
"""Seconds that long work waits while views move; then it gets one turn."""
ACTIVE = 1.0
"""Seconds for which a tab counts as moving after its last camera."""

T = TypeVar("T")


class Work(IntEnum):
    """What goes first when nobody moves a view."""

    EXPORT = 0
    THUMBNAIL = 1


class Picture(Protocol):
    """A scene that can be rendered."""

    @property
    def sizes(self) -> list[Size]:
        """Every size that can be rendered for a preview."""
        ...

    @property
    def size(self) -> Size:
        """The full size where none is asked for."""
        ...

    def picture(self, shot: Shot, size: Size) -> np.ndarray:
        """The picture as bytes, (h, w, 3)."""
        ...

    def remarks(self, shot: Shot, pixels: np.ndarray) -> dict[str, Any]:
        """What is to be told about a full picture."""
        ...


@dataclass(frozen=True, eq=False)
class _Job:
    since: float
    run: Callable[[], Any]
    result: Future


@dataclass(eq=False)
class Tab:
    """One view: what it wants to see, and how many of its frames are under way. Use its methods only."""

    engine: Engine
    scene: Callable[[], Picture]
    """The scene to render; raises UserError when there is none."""
    deliver: Callable[[Frame], object]
    """Takes each finished frame, in a thread of the engine."""
    fail: Callable[[int, Exception], object]
    """Told when the render of a camera failed."""
    refine: bool = True
    """Whether a full picture follows by itself when the camera rests."""
    waiting: Shot | None = None
    under_way: int = 0
    hidden: bool = False
    rest: Shot | None = None
    rest_at: float = 0.0
    moved_at: float = float("-inf")

    def show(self, shot: Shot) -> None:
        """Ask for a picture; what was asked for before and is not begun is forgotten."""
        with self.engine.wake:
            self.waiting, self.rest = shot, None
            if shot.moving:
                self.moved_at = time.monotonic()
            self.engine.wake.notify()

    def acknowledge(self) -> None:
        """One frame has arrived."""
        with self.engine.wake:
            self.under_way = max(0, self.under_way - 1)
            self.engine.wake.notify()

    def hide(self, hidden: bool) -> None:
        """A hidden view is not refined and leaves its share of the time to the others."""
        with self.engine.wake:
            self.hidden = hidden
            self.engine.wake.notify()

    def close(self) -> None:
        """Ask for nothing more."""
        with self.engine.wake:
            self.engine.tabs = [tab for tab in self.engine.tabs if tab is not self]

    def due(self, now: float) -> bool:
        """Whether there is something to render now."""
        if self.under_way >= MAX_UNDER_WAY:
            return False
        return self.waiting is not None or (self.rest is not None and not self.hidden and self.rest_at <= now)

    def take(self) -> Shot:
        """Empty the mailbox, or take the camera that has come to rest."""
        shot, self.waiting = self.waiting, None
        if shot is None:
            assert self.rest is not None
            shot = self.rest._replace(moving=False)
        self.rest = None
        return shot


class Engine:
    """The render thread, and beside it one that compresses pictures."""

    def __init__(self) -> None:
        self.wake = threading.Condition()
        self.tabs: list[Tab] = []
        self.speed = Speed()
        self.renders = 0
        self._jobs: dict[Work, deque[_Job]] = {work: deque() for work in Work}
        self._stopped = False
        self._compress = ThreadPoolExecutor(1, "nvs-compress")
        self._thread = threading.Thread(target=self._work, name="nvs-render", daemon=True)
        self._thread.start()

    def open_tab(
        self,
        scene: Callable[[], Picture],
        deliver: Callable[[Frame], object],
        fail: Callable[[int, Exception], object],
        refine: bool = True,
    ) -> Tab:
        """A view that takes its turn with all others."""
        tab = Tab(self, scene, deliver, fail, refine)
        with self.wake:
            self.tabs.append(tab)
        return tab

    def run(self, function: Callable[[], T], work: Work = Work.EXPORT) -> T:
        """Run a piece of long work in the render thread, between pictures, and wait for what it returns."""
        if threading.current_thread() is self._thread:
            return function()
        result: Future = Future()
        with self.wake:
            if self._stopped:
                raise RuntimeError("the viewer is closing")
            self._jobs[work].append(_Job(time.monotonic(), function, result))
            self.wake.notify()
        return result.result()

    def still(self, scene: Picture, shot: Shot) -> Frame:
        """A picture that is not urgent, when there is time."""
        start = time.perf_counter()
        pixels = self.run(lambda: scene.picture(shot, shot.size or scene.size), Work.THUMBNAIL)
        return encode_frame(shot, pixels, time.perf_counter() - start, None)

    def close(self) -> None:
        """End both threads; work that waits is given up."""
        with self.wake:
            self._stopped = True
            for jobs in self._jobs.values():
                for job in jobs:
                    job.result.cancel()
                jobs.clear()
            self.wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._compress.shutdown()

    def _work(self) -> None:
        while True:
            with self.wake:
                while not self._stopped and (task := self._choose()) is None:
                    self.wake.wait(self._next_rest())
                if self._stopped:
                    return
            if isinstance(task, _Job):
                _finish(task)
            elif task is not None:
                self._render(task[0], task[1])
            task = None  # keep no scene alive while there is nothing to do

    def _choose(self) -> _Job | tuple[Tab, Shot] | None:
        """What to do next; a served tab goes to the end of the row."""
        now = time.monotonic()
        jobs = [queue for queue in self._jobs.values() if queue]
        if any(now - queue[0].since > PATIENCE for queue in jobs):
            return min(jobs, key=lambda queue: queue[0].since).popleft()
        for tab in self.tabs:
            if tab.due(now):
                self.tabs.remove(tab)
                self.tabs.append(tab)
                return tab, tab.take()
        return jobs[0].popleft() if jobs else None

    def _next_rest(self) -> float | None:
        """Seconds until a view comes to rest; None if none is moving: then nothing happens until someone asks."""
        due = [
            t.rest_at
            for t in self.tabs
            if t.rest is not None and not t.hidden and t.under_way < MAX_UNDER_WAY  # an acknowledgement wakes us
        ]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _render(self, tab: Tab, shot: Shot) -> None:
        try:
            scene = tab.scene()
            full = shot.size or scene.size
            size = self.speed.preview(full, scene.sizes, self._moving()) if shot.moving else full
            start = time.perf_counter()
            pixels = scene.picture(shot, size)
            seconds = time.perf_counter() - start
        except Exception as error:  # whatever a render raises is told to its tab, and the next one works
            with suppress(RuntimeError):  # of an event loop that has ended
                tab.fail(shot.seq, error)
            return
        self.speed.add(size, seconds)
        with self.wake:
            self.renders += 1
            tab.under_way += 1
            if shot.moving and tab.refine and tab.waiting is None:
                tab.rest, tab.rest_at = shot, time.monotonic() + REST_AFTER
        self._compress.submit(_send, tab, scene, shot, pixels, seconds)

    def _moving(self) -> int:
        now = time.monotonic()
        return sum(not tab.hidden and now - tab.moved_at < ACTIVE for tab in self.tabs)


def _finish(job: _Job) -> None:
    if not job.result.set_running_or_notify_cancel():
        return
    try:
        job.result.set_result(job.run())
    except BaseException as error:  # handed on to the thread that waits for the result
        job.result.set_exception(error)


def _send(tab: Tab, scene: Picture, shot: Shot, pixels: np.ndarray, seconds: float) -> None:
    try:
        remarks = None if shot.moving else scene.remarks(shot, pixels)
        tab.deliver(encode_frame(shot, pixels, seconds, remarks))
    except Exception as error:  # told to the tab, as above
        tab.acknowledge()
        tab.fail(shot.seq, error)
