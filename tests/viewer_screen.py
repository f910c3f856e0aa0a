"""The viewer as a person has it before them: a server of its own, a browser, and one page of it."""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 60
"""Seconds that a page may take for anything; machines that run tests are busy."""
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
APP = "(await import(new URL('nvs-viewer/static/app.mjs', location.href).href)).app"


def browser_path() -> str | None:
    """The Chromium of this machine, if there is one."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


class Server:
    """`nvs view` in a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self.arguments, self.port = folder, arguments, 0
        self.log = folder / "server.log"

    def start(self) -> None:
        """Start and wait until it tells its address."""
        command = [sys.executable, "-m", "apps", "view", *self.arguments, "--port", str(self.port)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1,localhost", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log.open("a"), text=True, env=environment, cwd=ROOT
        )
        assert self.process.stdout
        for line in self.process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                return
        raise AssertionError(f"the server did not start: {self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        """End the process as a person would, with a signal."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://127.0.0.1:{self.port}"


class Screen:
    """One tab: what is seen, and what a person can do there."""

    def __init__(self, page: Any, server: Server) -> None:
        self.page, self.server = page, server
        self.problems: list[str] = []
        self.outside: list[str] = []
        page.set_default_timeout(1000 * PATIENCE)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._note_request)

    def open(self) -> Screen:
        """Load the page and wait for its first full picture."""
        self.page.goto(self.server.url)
        return self.settle()

    def settle(self) -> Screen:
        """Wait until the full picture of the newest camera is shown."""
        at_rest = "app.scene && !app.dirty && !app.moving && !app.camera.flying"
        self.wait(f"{at_rest} && app.shown?.full && app.shown.seq === app.seq")
        return self

    def ask(self, expression: str) -> Any:
        """Evaluate an expression of the page's `app`."""
        return self.page.evaluate(f"async () => {{ const app = {APP}; return {expression}; }}")

    def wait(self, expression: str) -> None:
        """Wait until an expression of the page's `app` is true."""
        loop = "while (!(EXPRESSION)) { if (performance.now() > end) throw new Error(why); await frame(); }"
        self.page.evaluate(
            f"async (why) => {{ const app = {APP}; const end = performance.now() + {1000 * PATIENCE};"
            f" const frame = () => new Promise(requestAnimationFrame); {loop.replace('EXPRESSION', expression)} }}",
            f"waited {PATIENCE} s for {expression}",
        )

    @property
    def stage(self) -> Any:
        """The view."""
        return self.page.locator(".nvs-stage")

    @property
    def c2w(self) -> np.ndarray:
        """Camera of the picture that is shown, 4x4."""
        return np.array(self.ask("app.shown.c2w")).reshape(4, 4)

    def drag(self, right: float, down: float, **options: Any) -> None:
        """Drag from the middle of the view by fractions of its size, and wait for the full picture."""
        box, mouse = self.stage.bounding_box(), self.page.mouse
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        mouse.move(x, y)
        mouse.down(**options)
        mouse.move(x + right * box["width"], y + down * box["height"], steps=8)
        mouse.up(**options)
        self.settle()

    def press(self, *keys: str) -> None:
        """Press keys in the view, and wait for the full picture."""
        self.stage.focus()
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def picture(self) -> np.ndarray:
        """Pixels of the picture on the canvas, uint8 [h w 3]."""
        url = self.page.evaluate("document.querySelector('.nvs-picture').toDataURL('image/png')")
        return pixels(base64.b64decode(url.partition(",")[2]))

    def tab(self, name: str) -> None:
        """Show one of the panels."""
        self.page.get_by_role("tab", name=name).click()

    def do(self, name: str) -> None:
        """Press a button of the path panel."""
        self.page.locator(f'[data-do="{name}"]').click()

    def saved(self, act: Callable[[], None]) -> Path:
        """The file that an act downloads."""
        with self.page.expect_download() as download:
            act()
        return Path(download.value.path())

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith((self.server.url, "data:", "blob:")):
            self.outside.append(request.url)


def pixels(content: bytes) -> np.ndarray:
    """Decode a picture into uint8 [h w 3]."""
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """Likeness of two uint8 pictures in dB."""
    error = np.mean((a.astype(float) - b.astype(float)) ** 2)
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


ROOT = Path(__file__).parents[1]
