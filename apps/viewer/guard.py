"""Keeps what is received within the room for uploads; Gradio by itself limits single files only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from apps.viewer.server import Viewer

FORM_BYTES = 2**20
"""What a form may have around the files."""


class UploadGuard:
    """Looks at the length of each upload before any of it is read, and makes room for it."""

    def __init__(self, app: ASGIApp, viewer: Viewer) -> None:
        self.app, self.viewer = app, viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or not scope["path"].endswith("/upload"):
            return await self.app(scope, receive, send)
        length = Headers(scope=scope).get("content-length", "")
        if not length.isdecimal():
            return await JSONResponse({"detail": "Uploads must tell their length."}, 411)(scope, receive, send)
        most = self.viewer.limits.upload_bytes
        if int(length) > most + FORM_BYTES:
            detail = f"An upload may have {most / 2**20:.0f} MiB at most."
            return await JSONResponse({"detail": detail}, 413)(scope, receive, send)
        await run_in_threadpool(self.viewer.workspace.trim)
        return await self.app(scope, receive, send)
