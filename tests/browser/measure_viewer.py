"""Measures the viewer in a real headless Chromium: how soon pictures follow the pointer, and what long use costs.

    python tests/browser/measure_viewer.py [--seconds 4] [--size 256]

Prints medians and the limits that they should keep. Browser and server share this machine, so that both compete for it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import sync_playwright
from viewer_screen import APP, QUIET, Screen, Server, browser_path

# A drag in the page itself, one pointer event per animation frame; returns what was shown meanwhile.
DRAG = """
async ({ seconds }) => {
  const app = APP;
  const stage = document.querySelector(".nvs-stage");
  const box = stage.getBoundingClientRect();
  const shown = [];
  const listen = ({ detail }) => shown.push({ ...detail, at: performance.now() });
  const send = (kind, x) => stage.dispatchEvent(new PointerEvent(kind, {
    pointerId: 1, isPrimary: true, button: 0, buttons: 1, bubbles: true, clientX: x, clientY: box.y + box.height / 2,
  }));
  stage.setPointerCapture = () => {};
  stage.addEventListener("nvs-frame", listen);
  const began = performance.now();
  send("pointerdown", box.x + box.width / 2);
  let now = began;
  while (now - began < 1000 * seconds) {
    now = await new Promise(requestAnimationFrame);
    send("pointermove", box.x + box.width * (0.5 + 0.3 * Math.sin((now - began) / 400)));
  }
  const released = performance.now();
  send("pointerup", box.x + box.width * 0.5);
  const last = () => shown.at(-1);
  while (!(last()?.full && last().seq === app.seq && !app.dirty)) await new Promise(requestAnimationFrame);
  stage.removeEventListener("nvs-frame", listen);
  return { shown: shown.filter((one) => one.at < released), full: last(), after: last().at - released };
}
""".replace("APP", APP)


def drag(screen: Screen, seconds: float) -> dict[str, Any]:
    """Drag for some seconds."""
    return screen.page.evaluate(DRAG, {"seconds": seconds})


def memory(server: Server) -> float:
    """Resident memory of the server in MiB."""
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


def report(name: str, value: float, limit: str, unit: str, kept: bool) -> None:
    """One line of the result."""
    print(f"{name:58} {value:8.2f} {unit:4} ({limit}) {'ok' if kept else 'MISSED'}", flush=True)


def measure_one(screen: Screen, seconds: float, size: int) -> None:
    """One tab: latency, frames while dragging against back-to-back rendering, and the full picture after release."""
    screen.page.evaluate(f"async () => {{ const app = {APP}; app.size = [{size}, {size}]; app.moved(false); }}")
    screen.settle()
    runs = [drag(screen, seconds) for _ in range(3)]
    frames = [frame for run in runs for frame in run["shown"]]
    latency = statistics.median(frame["latency"] - frame["ms"] for frame in frames)
    report("pointer move to picture, without rendering (median)", latency, "<= 60", "ms", latency <= 60)
    height, width = statistics.multimode((frame["height"], frame["width"]) for frame in frames)[0]
    rendering = statistics.mean(frame["ms"] for frame in frames)
    waited = statistics.median(frame["latency"] for frame in frames)
    print(f"  most frames {width} x {height}, rendered in {rendering:.1f} ms, {waited:.1f} ms after the pointer moved")
    rate = statistics.median(len(run["shown"]) / seconds for run in runs)
    # The screen shows 60 pictures a second at most.
    best = min(60.0, 1000 / rendering)
    report(f"{rate:.1f} frames per second of {best:.1f} possible", rate / best, ">= 0.8", "", rate / best >= 0.8)
    full = statistics.median(run["after"] for run in runs)
    limit = 1.5 * statistics.median(run["full"]["ms"] for run in runs) + 300
    report("full picture after release", full, f"<= {limit:.0f}", "ms", full <= limit)


def measure_two(first: Screen, second: Screen, seconds: float) -> None:
    """Two tabs that are dragged at once, against one tab alone."""
    alone = len(drag(first, seconds)["shown"])
    second.page.evaluate(f"(options) => {{ window.dragged = ({DRAG})(options); }}", {"seconds": seconds})
    both = [drag(first, seconds), second.page.evaluate("() => window.dragged")]
    for i, run in enumerate(both):
        share = len(run["shown"]) / alone
        report(f"two tabs, frames of tab {i + 1} against one alone", share, ">= 0.4", "", share >= 0.4)


def measure_memory(screen: Screen, seconds: float) -> None:
    """Resident memory after many frames."""
    done, after = 0, {}
    for goal in (100, 1000):
        while done < goal:
            done += len(drag(screen, seconds)["shown"])
        after[goal] = memory(screen.server)
    growth = 100 * (after[1000] / after[100] - 1)
    print(f"  server memory after 100 frames {after[100]:.0f} MiB, after {done} frames {after[1000]:.0f} MiB")
    report("growth of memory between 100 and 1000 frames", growth, "<= 5", "%", growth <= 5)


def main() -> None:
    """Start a server and a browser, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of each drag")
    parser.add_argument("--size", type=int, default=256, help="pixels of the full picture, width and height")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server(Path(folder))
        server.start()
        browser = playwright.chromium.launch(executable_path=browser_path(), args=list(QUIET))

        def tab() -> Screen:
            return Screen(browser.new_context(viewport={"width": 1280, "height": 900}).new_page(), server)

        try:
            first = tab()
            start = time.perf_counter()
            first.open()
            loaded = time.perf_counter() - start
            report("first page load to the first full picture", loaded, "< 3", "s", loaded < 3)
            measure_one(first, options.seconds, options.size)
            measure_two(first, tab().open(), options.seconds)
            measure_memory(first, options.seconds)
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    main()
