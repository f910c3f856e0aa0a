"""A server and a browser for all tests here, and a fresh page for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from viewer_screen import QUIET, Screen, Server, browser_path


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs package playwright")
    executable = browser_path()
    if executable is None:
        pytest.skip("needs package chromium: there is no Chromium on this machine")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=executable, args=list(QUIET))
        yield started
        started.close()


@pytest.fixture(scope="session")
def server(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`nvs view` with the shipped model and captures."""
    running = Server(tmp_path_factory.mktemp("server"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def new_screen(browser: Any, server: Server) -> Iterator[Callable[..., Screen]]:
    """`new_screen(**context)`: a page in a context of its own; errors and outside requests fail the test."""
    screens: list[Screen] = []

    def make(of: Server = server, **options: Any) -> Screen:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        screens.append(Screen(context.new_page(), of))
        return screens[-1]

    yield make
    for screen in screens:
        screen.page.context.close()
    assert [problem for screen in screens for problem in screen.problems] == []
    assert [url for screen in screens for url in screen.outside] == []


@pytest.fixture
def screen(new_screen: Callable[..., Screen]) -> Screen:
    """The page with its first full picture."""
    return new_screen().open()
