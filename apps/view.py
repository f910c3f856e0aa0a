"""`nvs view`: look around a scene in the browser."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from apps.encode import pick_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from apps.viewer.server import Viewer

LOCAL_NAMES = ("127.0.0.1", "localhost", "::1", "[::1]")
FIRST_PORT, PORTS_TRIED = 7860, 100
UNSAFE_WITHOUT_LOGIN = "Everybody who can reach this machine can use the viewer; --auth NAME:PASSWORD asks for a login."


def view(
    checkpoint_and_scenes: list[str],
    host: str = "127.0.0.1",
    port: int | None = None,
    share: bool = False,
    auth: str | None = None,
    root_path: str | None = None,
    allowed_hosts: list[str] | None = None,
    max_upload: int = 500,
    scene_memory: int = 2048,
    max_viewers: int = 32,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> None:
    """Look around scenes in the browser: drag, compare with photos, make films.

      nvs view

      nvs view demo my_capture scene.safetensors --port 8000

    Without words, the shipped model and the shipped captures are shown. The page answers on this machine only; from
    another one use an ssh tunnel (the command is printed) or --host 0.0.0.0 with --auth.

    Args:
        checkpoint_and_scenes: a model file or the name of a shipped one, then captures and scene states to show.
        host: address to listen on; 0.0.0.0 stands for every network of this machine.
        port: port to listen on, 0 for any; by default the first free one from 7860.
        share: make a public link for 72 hours; needs the internet and a program that Gradio downloads.
        auth: ask for a login, as NAME:PASSWORD.
        root_path: path under which a proxy shows the page, for example /viewer, or its whole address.
        allowed_hosts: further host names under which the page is opened, for example those of a proxy.
        max_upload: largest upload in MiB.
        scene_memory: memory for all open scenes together in MiB; then the one not used for longest is closed.
        max_viewers: most pages that are connected at a time.
        device: where to compute; auto takes the GPU if there is one.
    """
    _keep_to_this_machine()
    words = checkpoint_and_scenes or ["demo"]
    _check_limits({"--max-upload": max_upload, "--scene-memory": scene_memory, "--max-viewers": max_viewers})
    login = _login(auth)
    place = _free_port(host, port)

    from apps.viewer.server import Viewer, find_places
    from apps.viewer.workspace import Limits
    from nvs import load_model

    scenes = find_places(words[1:])
    model = load_model(words[0], pick_device(device))
    limits = Limits(
        upload_bytes=max_upload * 2**20,
        scene_bytes=scene_memory * 2**20,
        viewers=max_viewers,
        sessions=max(Limits.sessions, 2 * max_viewers),
    )
    viewer = Viewer(model, Path(words[0]).stem, scenes, limits, _names(allowed_hosts, root_path, share))
    try:
        viewer.prepare()
        page, url, public = launch(viewer, host, place, share, login, root_path)
        _tell(url, public, host, place, share, login is not None)
        _wait_for_the_end()
        page.close(verbose=False)
    finally:
        viewer.close()


def launch(
    viewer: Viewer,
    host: str = "127.0.0.1",
    port: int | None = None,
    share: bool = False,
    login: tuple[str, str] | None = None,
    root_path: str | None = None,
) -> tuple[Any, str, str | None]:
    """Serve the page in a thread of its own; returns the page, its address and its public address."""
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from apps.viewer.guard import RequestGuard, fetch_nothing
    from apps.viewer.page import build_page, look
    from apps.viewer.transport import routes

    os.environ["GRADIO_TEMP_DIR"] = str(viewer.workspace.uploads)
    fetch_nothing()
    page = build_page(viewer)
    page.queue(max_size=64, default_concurrency_limit=8, api_open=False)
    # Gradio looks a thousand times a second whether there is something to do; an idle server is to cost nothing.
    page._queue.sleep_when_free, page._queue.progress_update_sleep_when_free = 0.05, 0.1
    local = host in LOCAL_NAMES
    # Another page could give our address a name of its own, and then talk to us as if we were that page.
    names = [*LOCAL_NAMES, *viewer.allowed_hosts] if local else ["*"]
    _, url, public = page.launch(
        server_name=f"[{host}]" if ":" in host and not host.startswith("[") else host,  # an IPv6 address
        server_port=port,
        share=share,
        auth=login,
        root_path=root_path,
        max_file_size=viewer.limits.upload_bytes,
        app_kwargs={
            "routes": routes(viewer),
            "middleware": [
                Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False),
                Middleware(RequestGuard, viewer=viewer),
            ],
        },
        allowed_paths=[],
        ssr_mode=False,
        strict_cors=True,
        enable_monitoring=False,
        run_history=False,
        pwa=False,
        mcp_server=False,
        quiet=True,
        prevent_thread_lock=True,
        inbrowser=False,
        **look(),
    )
    return page, url, public


def _keep_to_this_machine() -> None:
    """Tell Gradio before it is imported that it is to ask nobody for anything."""
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        os.environ[name] = "1"
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    # Gradio looks whether its own page answers; a proxy would be asked otherwise.
    known = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = ",".join(filter(None, [known, "127.0.0.1,localhost"]))


def _check_limits(limits: dict[str, int]) -> None:
    from data import UserError

    for option, number in limits.items():
        if number < 1:
            raise UserError(f"{option} {number} is not possible: give 1 or more.")


def _login(auth: str | None) -> tuple[str, str] | None:
    from data import UsageError

    if auth is None:
        return None
    name, colon, password = auth.partition(":")
    if not (name and colon and password):
        raise UsageError("A login is a name and a password: --auth NAME:PASSWORD.")
    return name, password


def _free_port(host: str, port: int | None) -> int:
    """The wanted port if it is free, else the first free one; raises UserError where there is none."""
    from data import UserError

    if port is not None and not 0 <= port <= 65535:
        raise UserError(f"There is no port {port}: choose one from 1 to 65535, or 0 for any.")
    wanted = [port] if port is not None else range(FIRST_PORT, FIRST_PORT + PORTS_TRIED)
    reason = ""
    for number in wanted:
        try:
            # Both the address and the port are looked at, IPv6 addresses too.
            family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), number, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
                return probe.getsockname()[1]
        except (OSError, OverflowError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    where = f"port {port}" if port is not None else f"any port from {FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1}"
    raise UserError(
        f"The viewer cannot listen at {host} on {where} ({reason.lower()}): choose another --port or --host."
    )


def _names(allowed: Sequence[str] | None, root_path: str | None, share: bool) -> list[str]:
    """Host names under which browsers may see the page, besides those of this machine."""
    from urllib.parse import urlsplit

    found = list(allowed or [])
    if root_path and urlsplit(root_path).hostname:
        found.append(urlsplit(root_path).hostname or "")
    return [*found, "*.gradio.live"] if share else found


def _tell(url: str, public: str | None, host: str, port: int, share: bool, has_login: bool) -> None:
    print(f"The viewer is ready: {url}", flush=True)
    if host in LOCAL_NAMES:
        name = socket.gethostname()
        print(f"From another computer: ssh -N -L {port}:127.0.0.1:{port} {name}, then open http://127.0.0.1:{port}/")
    elif not has_login:
        print(UNSAFE_WITHOUT_LOGIN)
    if share:
        print(f"Public link: {public}" if public else "There is no public link: Gradio's server could not be reached.")
    print("Ctrl-C ends it.", flush=True)


def _wait_for_the_end() -> None:
    """Wait for Ctrl-C or a request to end."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
