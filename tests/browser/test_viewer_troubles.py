"""The viewer in a real browser when things go wrong or out of memory, with a tiny model in this process."""

from __future__ import annotations

import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from viewer_samples import finish, make_viewer
from viewer_screen import Screen

from apps import view
from apps.viewer import opening
from apps.viewer.engine import Engine
from apps.viewer.workspace import Limits
from nvs import Renderer

pytestmark = pytest.mark.slow


@pytest.fixture
def site(capture: Path, browser: Any) -> Iterator[SimpleNamespace]:
    """A viewer with room for one scene and a half; `viewer` and `url`."""
    view._keep_to_this_machine()
    viewer = make_viewer([capture], Limits(grace_seconds=0.5))
    viewer.prepare()
    viewer.store.max_bytes = int(1.5 * viewer.store.num_bytes)
    page, url, _ = view.launch(viewer, port=view._free_port("127.0.0.1", 0))
    yield SimpleNamespace(viewer=viewer, url=url.rstrip("/"))
    page.close(verbose=False)
    viewer.close()


@pytest.fixture
def screen(new_screen: Callable[..., Screen], site: Any) -> Screen:
    return new_screen(of=site).open()


def pack(folder: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as file:
        for path in folder.rglob("*.*"):
            file.write(path, path.relative_to(folder))
    return archive


def upload(screen: Screen, path: Path) -> None:
    screen.page.locator("#nvs-upload input[type=file]").set_input_files(path)


def choose_first(screen: Screen) -> None:
    screen.page.locator("#nvs-choice input").click()
    screen.page.locator("[role=listbox] [role=option]").first.click()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_scene_that_was_removed_is_opened_again(screen: Screen, site: Any) -> None:
    screen.drag(0.2, 0.1)
    before = screen.c2w
    banner = screen.page.locator(".nvs-banner")
    finish(site.viewer.find("a-script").open("given:0", 2))
    banner.get_by_text("removed from memory").wait_for()
    banner.get_by_role("button", name="Open it again").click()
    screen.wait("app.scene")
    screen.settle()
    assert banner.is_hidden()
    assert np.allclose(screen.c2w, before, atol=1e-5)


def test_an_upload_that_was_removed_must_be_uploaded_again(
    screen: Screen, site: Any, capture: Path, tmp_path: Path
) -> None:
    first = screen.ask("app.scene.id")
    archive = pack(capture, tmp_path / "mine.zip")
    upload(screen, archive)
    screen.wait(f"app.scene && app.scene.id !== '{first}'")
    finish(site.viewer.find("a-script").open("given:0", 2))
    banner = screen.page.locator(".nvs-banner")
    banner.get_by_text("upload it again").wait_for()
    assert banner.get_by_role("button").count() == 0
    # The list of scenes leads back, although it has shown this scene all the time.
    choose_first(screen)
    screen.wait(f"app.scene?.id === '{first}'")
    screen.settle()


def test_a_render_that_fails_is_told_and_the_next_drag_works(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    banner = screen.page.locator(".nvs-banner")
    with monkeypatch.context() as patch:
        patch.setattr(Renderer, "frames", lambda *_: 1 // 0)
        screen.stage.focus()
        screen.page.keyboard.press("ArrowLeft")
        banner.get_by_text("could not be made").wait_for()
    screen.drag(0.1, 0.0)
    assert banner.is_hidden()


def test_a_saved_scene_opens_and_takes_in_more_photos(screen: Screen, site: Any, capture: Path, tmp_path: Path) -> None:
    site.viewer.store.max_bytes *= 10
    photos = screen.ask("app.scene.photos.filter((one) => one.role === 'input').length")
    first = screen.picture()
    saved = screen.saved(lambda: screen.page.get_by_role("link", name="Save scene").click())
    before = screen.ask("app.scene.id")
    upload(screen, saved.rename(tmp_path / "saved.safetensors"))
    screen.wait(f"app.scene && app.scene.id !== '{before}'")
    screen.settle()
    assert screen.ask("app.scene.format") == "scene state"
    assert screen.ask("app.scene.photos.length") == photos
    assert np.abs(screen.picture().astype(float) - first).mean() < 2
    before = screen.ask("app.scene.id")
    with screen.page.expect_file_chooser() as chooser:
        screen.page.get_by_role("button", name="Add photos to this scene").click()
    chooser.value.set_files(pack(capture, tmp_path / "more.zip"))
    screen.wait(f"app.scene && app.scene.id !== '{before}'")
    screen.settle()
    assert np.abs(screen.picture().astype(float) - first).mean() > 0


def test_photos_that_are_added_leave_path_and_view(screen: Screen, site: Any, capture: Path, tmp_path: Path) -> None:
    site.viewer.store.max_bytes *= 10
    screen.drag(0.2, 0.1)
    screen.press("k")
    before, view = screen.ask("app.scene.id"), screen.c2w
    with screen.page.expect_file_chooser() as chooser:
        screen.page.get_by_role("button", name="Add photos to this scene").click()
    chooser.value.set_files(pack(capture, tmp_path / "more.zip"))
    screen.wait(f"app.scene && app.scene.id !== '{before}'")
    screen.settle()
    assert screen.ask("app.path.keyframes.length") == 1
    assert np.allclose(screen.c2w, view, atol=1e-6)


def test_a_job_ends_with_its_tab_and_gives_way_to_the_next(
    screen: Screen, site: Any, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, ended = threading.Semaphore(0), threading.Semaphore(0)

    def endless(photos: Any, place: Any, config: Any, on_step: Callable[[str, int, int], None]) -> None:
        going.release()
        try:
            while True:
                on_step("comparing photos", 1, 2)
                time.sleep(0.01)
        finally:
            ended.release()

    monkeypatch.setattr(opening, "write_photo_scene", endless)
    bar, photo = screen.page.locator(".nvs-job"), next((capture / "images").iterdir())
    upload(screen, photo)
    bar.get_by_text("comparing photos").wait_for()
    assert going.acquire(timeout=30)
    choose_first(screen)
    assert ended.acquire(timeout=30)
    bar.wait_for(state="detached")
    screen.page.reload()
    screen.settle()
    upload(screen, photo)
    assert going.acquire(timeout=30)
    session = screen.ask("app.bridge.session")
    screen.page.close()
    assert ended.acquire(timeout=30)
    until(lambda: session not in site.viewer._sessions)


def test_an_idle_page_costs_nothing(screen: Screen, site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    screen.drag(0.1, 0.0)
    devtools = screen.page.context.new_cdp_session(screen.page)
    devtools.send("Performance.enable")
    screen.page.evaluate(
        """() => {
          window.woken = [];
          for (const name of ["requestAnimationFrame", "setTimeout", "setInterval", "fetch"]) {
            const original = window[name];
            window[name] = (...given) => (window.woken.push(name), original(...given));
          }
          const send = WebSocket.prototype.send;
          WebSocket.prototype.send = function (...given) { window.woken.push("send"); return send.apply(this, given); };
        }"""
    )
    seen: list[int] = []

    def is_quiet() -> bool:
        """Whether the animations of Gradio's own parts, which are new on the page, have ended."""
        seen.append(screen.page.evaluate("window.woken.length"))
        time.sleep(0.3)
        return len(seen) > 1 and seen[-1] == seen[-2]

    until(is_quiet)
    screen.page.evaluate("window.woken.length = 0")
    busy, renders = _busy_seconds(devtools), site.viewer.engine.renders
    chosen: list[int] = []
    original = Engine._choose
    monkeypatch.setattr(Engine, "_choose", lambda engine: chosen.append(1) or original(engine))
    time.sleep(2)  # nothing is to happen
    assert site.viewer.engine.renders == renders
    assert chosen == []
    assert screen.page.evaluate("window.woken") == []
    assert _busy_seconds(devtools) - busy < 0.2


def _busy_seconds(devtools: Any) -> float:
    """Time that the page has worked so far."""
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
