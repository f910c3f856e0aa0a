"""How cameras come in and frames go out: one WebSocket per tab, or plain requests where no WebSocket gets through.

The messages are described in docs/viewer.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from apps.viewer.frames import Frame, Shot, read_json, read_shot
from apps.viewer.guard import same_origin
from apps.viewer.pictures import jpeg, plain_message, png
from data import UserError

if TYPE_CHECKING:
    from apps.viewer.scenes import OpenScene
    from apps.viewer.server import Viewer
    from apps.viewer.session import Session

MAX_MESSAGE = 4096
"""Characters of a message from a browser."""
MAX_WAITING = 100
"""Messages that may wait for a tab which does not read; then it has to connect again."""
BAD_TOKEN, WRONG_ORIGIN, TOO_MANY, TOO_BIG, TOO_SLOW = 4401, 4403, 4429, 1009, 4408
MAX_PLAIN_REQUESTS = 4
"""Pictures that one session may ask for at a time; a page asks for one after the other."""
STATIC = Path(__file__).parent / "static"


def routes(viewer: Viewer) -> list[BaseRoute]:
    """All routes of the viewer besides Gradio's."""
    live = Live(viewer)
    plain = Plain(viewer)
    return [
        WebSocketRoute("/nvs-viewer/ws", live.serve),
        Route("/nvs-viewer/hello", plain.hello, methods=["POST"]),
        Route("/nvs-viewer/render", plain.render, methods=["POST"]),
        Route("/nvs-viewer/photo/{index:int}", plain.photo),
        Route("/nvs-viewer/thumb/{index:int}", plain.thumb),
        Route("/nvs-viewer/state", plain.state),
        Mount("/nvs-viewer/static", StaticFiles(directory=STATIC)),
    ]


def hello(viewer: Viewer, session: Session) -> dict[str, Any]:
    """What a page is told when it connects."""
    about = {"server": viewer.run_id, "session": session.id, "key": viewer.tokens.key(session.id)}
    return {"t": "hello", **about, "scene": session.describe(), "lost": session.lost}


class Live:
    """The WebSocket: cameras up, frames and news of the scene down."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer

    async def serve(self, socket: WebSocket) -> None:
        """Serve one tab until it leaves."""
        await socket.accept()
        viewer = self.viewer
        session_id = viewer.tokens.check_token(socket.query_params.get("token", ""))
        if not same_origin(socket, viewer.allowed_hosts):
            return await socket.close(WRONG_ORIGIN, "wrong origin")
        if session_id is None:
            return await socket.close(BAD_TOKEN, "the token is wrong or too old")
        if viewer.connections >= viewer.limits.viewers:
            return await socket.close(TOO_MANY, "too many viewers")
        try:
            session = viewer.find(session_id)
        except UserError:
            return await socket.close(TOO_MANY, "too many sessions")
        viewer.connections += 1
        try:
            await self._talk(socket, session)
        finally:
            viewer.connections -= 1
            viewer.left(session_id, viewer.limits.grace_seconds)

    async def _talk(self, socket: WebSocket, session: Session) -> None:
        loop = asyncio.get_running_loop()
        outbox: asyncio.Queue[dict[str, Any] | Frame] = asyncio.Queue()

        def send(message: dict[str, Any] | Frame) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(outbox.put_nowait, message)

        stop = session.listen(send)
        tab = self.viewer.engine.open_tab(
            session.shown, send, lambda seq, error: send({"t": "error", "seq": seq, "message": plain_message(error)})
        )
        sender = asyncio.create_task(_send_all(socket, outbox))
        send(hello(self.viewer, session))
        try:
            while True:
                text = await socket.receive_text()
                if len(text) > MAX_MESSAGE:
                    return await socket.close(TOO_BIG, "the message is too big")
                if outbox.qsize() > MAX_WAITING:
                    return await socket.close(TOO_SLOW, "too much waits to be read")
                message: dict[str, Any] = {}
                try:
                    message = read_json(text)
                    _obey(message, session, tab)
                except UserError as error:
                    send({"t": "error", "seq": message.get("seq"), "message": str(error)})
        except (WebSocketDisconnect, KeyError):  # a KeyError stands for a message that is no text
            return None
        finally:
            tab.close()
            stop()
            sender.cancel()


def _obey(message: dict[str, Any], session: Session, tab: Any) -> None:
    match message.get("t"):
        case "cam":
            sizes = session.shown().full_sizes
            # A size of the scene before this one may still be on its way.
            known = message.get("size") in [list(size) for size in sizes]
            tab.show(read_shot(message if known else {**message, "size": None}, sizes))
        case "ack":
            tab.acknowledge()
        case "hidden":
            tab.hide(message.get("hidden") is True)
        case other:
            raise UserError(f"There is no message of kind {str(other)[:20]!r}.")


async def _send_all(socket: WebSocket, outbox: asyncio.Queue[dict[str, Any] | Frame]) -> None:
    try:
        while True:
            message = await outbox.get()
            if isinstance(message, dict):
                await socket.send_text(json.dumps(message))
                continue
            if message.remarks is not None:
                await socket.send_text(json.dumps({"t": "info", "seq": message.seq, **message.remarks}))
            await socket.send_bytes(message.packed())
    except (WebSocketDisconnect, RuntimeError):  # the tab has gone; `serve` notices by itself
        return


class Plain:
    """The same without a WebSocket, and pictures of photos."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer

    async def hello(self, request: Request) -> Response:
        """A token in, the key for all other requests out."""
        return await _answer(self._hello, request)

    async def render(self, request: Request) -> Response:
        """One camera in, its picture out."""
        return await _answer(self._render, request)

    async def photo(self, request: Request) -> Response:
        """A photo as the model would be given it, at one of the scene's sizes."""
        return await _answer(self._photo, request)

    async def thumb(self, request: Request) -> Response:
        """A small picture of a photo."""
        return await _answer(self._thumb, request)

    async def state(self, request: Request) -> Response:
        """The scene state as a file."""
        return await _answer(self._state, request)

    async def _hello(self, request: Request) -> Response:
        message = read_json(await _body(request))
        session_id = self.viewer.tokens.check_token(str(message.get("token", "")))
        if session_id is None or not same_origin(request, self.viewer.allowed_hosts):
            return JSONResponse({"message": "The token is wrong or too old."}, 403)
        session = self.viewer.find(session_id)
        session.called()
        self.viewer.left(session_id, self.viewer.limits.silent_seconds)
        return JSONResponse(hello(self.viewer, session))

    async def _render(self, request: Request) -> Response:
        session = self._session(request)
        scene, message = session.shown(), read_json(await _body(request))
        shot = read_shot(message, scene.full_sizes)
        if message.get("quality") == "thumbnail":
            frame = await run_in_threadpool(self.viewer.engine.still, scene, shot)
        else:
            frame = await self._live(session, scene, shot)
        headers = {
            "X-Seq": str(frame.seq),
            "X-Full": str(int(frame.full)),
            "X-Size": "{},{}".format(*frame.size),
            "X-Render-Ms": f"{frame.milliseconds:.1f}",
            "X-Remarks": json.dumps(frame.remarks),
        }
        return Response(frame.data, media_type="image/png" if frame.lossless else "image/jpeg", headers=headers)

    async def _live(self, session: Session, scene: OpenScene, shot: Shot) -> Frame:
        """A picture in turn with those of all other views."""
        if session.plain_requests >= MAX_PLAIN_REQUESTS:
            raise UserError("Ask for one picture after the other.")
        session.plain_requests += 1
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Frame] = loop.create_future()
        tab = self.viewer.engine.open_tab(
            lambda: scene,
            lambda frame: loop.call_soon_threadsafe(_settle, answer, frame),
            lambda _, error: loop.call_soon_threadsafe(_settle, answer, error),
            refine=False,
        )
        try:
            tab.show(shot)
            return await answer
        finally:
            tab.close()
            session.plain_requests -= 1

    async def _photo(self, request: Request) -> Response:
        scene, index = self._session(request).shown(), request.path_params["index"]
        size = (_whole(request, "h", scene.size[0]), _whole(request, "w", scene.size[1]))
        if size not in scene.full_sizes:
            raise UserError("Photos cannot be had at this size.")
        picture = png(await run_in_threadpool(scene.photo, index, size))
        return Response(picture, media_type="image/png", headers=_cached(request, scene))

    async def _thumb(self, request: Request) -> Response:
        scene = self._session(request).shown()
        picture = jpeg(await run_in_threadpool(scene.thumbnail, request.path_params["index"]))
        return Response(picture, media_type="image/jpeg", headers=_cached(request, scene))

    async def _state(self, request: Request) -> Response:
        session = self._session(request)
        file = Path(await run_in_threadpool(session.state_file))
        disposition = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(file.name)}"}
        return FileResponse(file, media_type="application/octet-stream", headers=disposition)

    def _session(self, request: Request) -> Session:
        session_id = self.viewer.tokens.check_key(request.query_params.get("key", ""))
        if session_id is None:
            raise NotAllowed("This page belongs to an earlier run of the server: load it again.")
        return self.viewer.find(session_id)


def _cached(request: Request, scene: OpenScene) -> dict[str, str]:
    """Browsers may keep a picture only under an address that names its scene: the next one has the same numbers."""
    named = request.query_params.get("scene") == scene.key
    return {"Cache-Control": "private, max-age=600" if named else "no-store"}


class NotAllowed(UserError):
    """A request without a right key."""


async def _answer(handler: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
    try:
        return await handler(request)
    except NotAllowed as error:
        return JSONResponse({"message": str(error)}, 403)
    except UserError as error:
        return JSONResponse({"message": str(error)}, 422)
    except Exception as error:  # a failing render is told to the page that asked for it
        return JSONResponse({"message": plain_message(error)}, 500)


def _settle(answer: asyncio.Future[Frame], value: Frame | Exception) -> None:
    if answer.done():
        return
    if isinstance(value, Frame):
        answer.set_result(value)
    else:
        answer.set_exception(value)


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_MESSAGE:
            raise UserError("The message is too big.")
    return body


def _whole(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 6 else default
