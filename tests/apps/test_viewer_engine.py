"""The render thread of the viewer: who is served when, with a stand-in for a scene."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from apps.viewer import engine as engine_module
from apps.viewer.engine import Engine, Tab, Work
from apps.viewer.frames import Frame, Shot


class FakeScene:
    """Renders a grey picture, at most as fast as it is let to."""

    size = (32, 32)
    sizes = [(16, 16), (24, 24), (32, 32)]  # noqa: RUF012

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.rendered: list[int] = []

    def picture(self, shot: Shot, size: tuple[int, int]) -> np.ndarray:
        self.begun.set()
        assert self.gate.wait(10)
        time.sleep(self.seconds * size[0] * size[1] / 1024)
        self.rendered.append(shot.seq)
        if shot.fov == 13:
            raise RuntimeError("no such picture")
        return np.full((*size, 3), shot.seq % 256, np.uint8)

    def remarks(self, shot: Shot, pixels: np.ndarray) -> dict:
        return {"psnr": None, "notes": []}


class Screen:
    """Collects what a tab is sent, and acknowledges it like a browser if wanted."""

    def __init__(self, engine: Engine, scene: FakeScene, acknowledge: bool = True, refine: bool = True) -> None:
        self.frames: list[Frame] = []
        self.errors: list[tuple[int, Exception]] = []
        self.changed = threading.Condition()
        self.acknowledge = acknowledge
        self.tab: Tab = engine.open_tab(lambda: scene, self._frame, self._error, refine)

    def _frame(self, frame: Frame) -> None:
        with self.changed:
            self.frames.append(frame)
            self.changed.notify_all()
        if self.acknowledge:
            self.tab.acknowledge()

    def _error(self, seq: int, error: Exception) -> None:
        with self.changed:
            self.errors.append((seq, error))
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 10), (self.frames, self.errors)

    def last(self) -> int:
        return self.frames[-1].seq if self.frames else -1


@pytest.fixture
def engine():
    found = Engine()
    yield found
    found.close()


def shot(seq: int, moving: bool = False, fov: float = 50.0) -> Shot:
    return Shot(torch.eye(4, dtype=torch.float64), None, fov, seq, None, moving)


def test_the_newest_camera_wins(engine):
    scene = FakeScene()
    scene.gate.clear()
    screen = Screen(engine, scene)
    screen.tab.show(shot(1))
    assert scene.begun.wait(10)
    for seq in range(2, 50):
        screen.tab.show(shot(seq))
    scene.gate.set()
    screen.wait(lambda: screen.last() == 49)
    assert scene.rendered == [1, 49]
    assert [frame.seq for frame in screen.frames] == [1, 49]


def test_tabs_take_turns(engine):
    scene = FakeScene()
    greedy, modest = Screen(engine, scene), Screen(engine, scene)
    served: list[str] = []
    original = scene.picture

    def picture(shot: Shot, size: tuple[int, int]) -> np.ndarray:
        served.append("greedy" if shot.seq < 1000 else "modest")
        # Both ask again while this picture is made, the greedy one many times.
        if len(served) < 20:
            for step in range(5):
                greedy.tab.show(globals()["shot"](len(served) * 5 + step))
            modest.tab.show(globals()["shot"](1000 + len(served)))
        return original(shot, size)

    scene.picture = picture
    scene.gate.clear()
    greedy.tab.show(shot(1))
    modest.tab.show(shot(1000))
    scene.gate.set()
    modest.wait(lambda: modest.last() >= 1010)
    assert abs(served.count("greedy") - served.count("modest")) <= 2


def test_at_most_two_frames_are_under_way(engine):
    scene = FakeScene()
    screen = Screen(engine, scene, acknowledge=False)
    for seq in range(1, 4):
        screen.tab.show(shot(seq))
        screen.wait(lambda seq=seq: screen.last() == min(seq, 2))
    screen.tab.show(shot(4))
    assert scene.rendered == [1, 2]
    screen.tab.acknowledge()
    screen.wait(lambda: screen.last() == 4)
    assert scene.rendered == [1, 2, 4]


def test_one_full_frame_at_rest(engine):
    scene = FakeScene()
    screen = Screen(engine, scene)
    screen.tab.show(shot(7, moving=True))
    screen.wait(lambda: len(screen.frames) == 2)
    assert [(frame.seq, frame.full) for frame in screen.frames] == [(7, False), (7, True)]
    assert screen.frames[1].size == (32, 32)
    assert screen.frames[1].remarks == {"psnr": None, "notes": []}


def test_a_hidden_view_is_refined_when_it_is_seen_again(engine):
    scene = FakeScene()
    screen = Screen(engine, scene)
    screen.tab.hide(True)
    screen.tab.show(shot(1, moving=True))
    screen.wait(lambda: len(screen.frames) == 1)
    engine.run(lambda: time.sleep(1.5 * engine_module.REST_AFTER))
    engine.run(lambda: None)
    assert len(screen.frames) == 1
    screen.tab.hide(False)
    screen.wait(lambda: len(screen.frames) == 2)
    assert screen.frames[1].full


def test_previews_are_small_when_rendering_is_slow(engine):
    scene = FakeScene(seconds=0.12)
    screen = Screen(engine, scene)
    for seq in range(4):
        screen.tab.show(shot(seq, moving=True))
        screen.wait(lambda seq=seq: screen.last() == seq)
    assert screen.frames[0].size == (32, 32)  # nothing is known yet
    assert screen.frames[-1].size < (32, 32)
    screen.wait(lambda: screen.frames[-1].full)
    assert screen.frames[-1].size == (32, 32)


def test_a_failing_render_is_told_and_the_next_one_works(engine):
    screen = Screen(engine, FakeScene())
    screen.tab.show(shot(1, fov=13))
    screen.wait(lambda: len(screen.errors) == 1)
    assert screen.errors[0][0] == 1
    screen.tab.show(shot(2))
    screen.wait(lambda: screen.last() == 2)


def test_views_come_before_long_work_and_that_before_thumbnails(engine):
    scene = FakeScene()
    scene.gate.clear()
    screen, order = Screen(engine, scene), []
    screen.tab.show(shot(1))
    assert scene.begun.wait(10)
    threads = [
        threading.Thread(target=engine.run, args=(lambda: order.append("thumbnail"), Work.THUMBNAIL)),
        threading.Thread(target=engine.run, args=(lambda: order.append("export"), Work.EXPORT)),
    ]
    for thread in threads:
        thread.start()
    while sum(map(len, engine._jobs.values())) < 2:
        time.sleep(0.001)
    screen.tab.show(shot(2))
    engine_order = scene.rendered
    scene.gate.set()
    for thread in threads:
        thread.join()
    screen.wait(lambda: screen.last() == 2)
    assert order == ["export", "thumbnail"]
    assert engine_order == [1, 2]


def test_long_work_gets_a_turn_while_views_move(engine, monkeypatch):
    monkeypatch.setattr(engine_module, "PATIENCE", 0.05)
    scene = FakeScene(seconds=0.01)
    screen, stop = Screen(engine, scene), threading.Event()

    def drag() -> None:
        seq = 0
        while not stop.is_set():
            screen.tab.show(shot(seq := seq + 1))

    thread = threading.Thread(target=drag)
    thread.start()
    try:
        assert [engine.run(lambda i=i: i) for i in range(3)] == [0, 1, 2]
    finally:
        stop.set()
        thread.join()
    assert scene.rendered


def test_errors_of_long_work_reach_who_waits(engine):
    with pytest.raises(ZeroDivisionError):
        engine.run(lambda: 1 // 0)
    assert engine.run(lambda: 5) == 5


def test_idle_costs_no_time(engine):
    screen = Screen(engine, FakeScene())
    screen.tab.show(shot(1, moving=True))
    screen.wait(lambda: bool(screen.frames) and screen.frames[-1].full)
    clock = time.pthread_getcpuclockid(engine._thread.ident)
    woken = []
    original = engine._choose
    engine._choose = lambda: woken.append(1) or original()
    before = time.clock_gettime(clock)
    time.sleep(0.5)
    assert time.clock_gettime(clock) - before < 0.01
    assert len(woken) <= 1  # the last acknowledgement


def test_a_closed_tab_is_not_served(engine):
    scene = FakeScene()
    screen = Screen(engine, scene)
    screen.tab.close()
    screen.tab.show(shot(1))
    engine.run(lambda: None)
    assert not scene.rendered
