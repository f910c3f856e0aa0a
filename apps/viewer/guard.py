"""Keeps what visitors send within bounds: its length, where it comes from, and no addresses to fetch for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from apps.viewer.server import Viewer

FORM_BYTES = 2**20
"""What a form may have around the files."""
MESSAGE_BYTES = 16 * 2**20
"""Anything that is sent and is no upload; the largest are camera paths."""

NO_FETCHING = "The viewer fetches nothing from other addresses."


class RequestGuard:
    """Looks at the length of whatever is sent before any of it is read, and makes room for uploads."""

    def __init__(self, app: ASGIApp, viewer: Viewer) -> None:
        self.app, self.viewer = app, viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if refusal := await self._refusal(scope):
            detail, status = refusal
            return await JSONResponse({"detail": detail}, status)(scope, receive, send)
        return await self.app(scope, receive, send)

    async def _refusal(self, scope: Scope) -> tuple[str, int] | None:
        if scope["type"] != "http":
            return None
        if "/file=http:" in scope["path"] or "/file=https:" in scope["path"]:  # Gradio would pass them on
            return NO_FETCHING, 403
        if scope["method"] != "POST":
            return None
        length = Headers(scope=scope).get("content-length", "")
        if not length.isdecimal():
            return "Requests must tell their length.", 411
        if not scope["path"].rstrip("/").endswith("/upload"):
            return ("This is too much for a message.", 413) if int(length) > MESSAGE_BYTES else None
        most = self.viewer.limits.upload_bytes
        if int(length) > most + FORM_BYTES:
            return f"An upload may have {most / 2**20:.0f} MiB at most.", 413
        await run_in_threadpool(self.viewer.workspace.trim)
        return None


def fetch_nothing() -> None:
    """Let Gradio refuse an address in place of an uploaded file, which by itself it downloads whatever its size."""
    import gradio as gr
    from gradio import processing_utils

    async def refuse(url: str, cache_dir: str) -> NoReturn:
        raise gr.Error(f"Upload the file itself. {NO_FETCHING}", print_exception=False)

    processing_utils.async_ssrf_protected_download = refuse


def same_origin(connection: HTTPConnection, allowed: tuple[str, ...]) -> bool:
    """Whether a browser's request comes from a page of this server, or of a name that it was told to answer to."""
    origin = urlsplit(connection.headers.get("origin", ""))
    host, name = connection.headers.get("host", ""), origin.hostname or ""
    # As for the Host itself, a name may begin with "*." for all names that end so.
    known = any(name == one or (one.startswith("*.") and name.endswith(one[1:])) for one in allowed)
    return bool(origin.netloc) and (origin.netloc == host or known)
