"""The viewer as a whole: one model, one render thread, many sessions."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from apps.viewer.describe import describe_model
from apps.viewer.engine import Engine
from apps.viewer.opening import Opener
from apps.viewer.scenes import OpenScene, SceneStore
from apps.viewer.session import Session
from apps.viewer.tokens import SESSION_ID, Tokens
from apps.viewer.workspace import Limits, Workspace
from data import UserError, bundled_scenes, find_scenes
from nvs import LaCT


class Viewer:
    """Everything behind the page. `places` are captures and states that the person who starts it names."""

    def __init__(
        self,
        model: LaCT,
        model_name: str,
        places: Sequence[Path] = (),
        limits: Limits | None = None,
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        self.model = model.eval()
        self.limits = limits or Limits()
        self.allowed_hosts = tuple(allowed_hosts)
        """Names besides its own under which pages of this server are seen, for example behind a proxy."""
        self.run_id = secrets.token_hex(8)
        """Tells a page whether it still talks to the same run of the server."""
        self.model_info: dict[str, Any] = {
            "name": model_name,
            "parameters": sum(p.numel() for p in model.parameters()),
            **(describe_model(model) or {}),
        }
        self.places = {f"given:{i}": place for i, place in enumerate(places)}
        self.places |= {f"bundled:{name}": folder for name, folder in bundled_scenes().items()}
        self.connections = 0
        self.tokens = Tokens()
        self.workspace = Workspace(self.limits)
        self.engine = Engine()
        self.store = SceneStore(self.limits.scene_bytes, self._on_evicted)
        self.opener = Opener(self.model, self.engine, self.store, self.limits)
        self._sessions: dict[str, Session] = {}
        self._lock = threading.RLock()

    def prepare(self) -> None:
        """Open the first scene, so that the first page shows it at once; raises UserError if it cannot be opened."""
        source, place = next(iter(self.places.items()), (None, None))
        if source and place:
            self.store.keep(self.opener.open_place(place, source, None, lambda *_: None), "the first page")

    def choices(self) -> list[tuple[str, str]]:
        """(label, source) of the scenes that can be opened by name; those of the command line come first."""
        return [
            (f"{place.stem} (comes with the project)" if source.startswith("bundled:") else place.stem, source)
            for source, place in self.places.items()
        ]

    def session(self, request: gr.Request) -> Session:
        """The session of whoever sent a Gradio event."""
        return self.find(request.session_hash or "")

    def find(self, session_id: str) -> Session:
        """The session of this name, which begins empty."""
        if not SESSION_ID.fullmatch(session_id):
            raise UserError("This request names no session: load the page again, or use gradio_client.")
        with self._lock:
            if session_id not in self._sessions:
                self._make_room()
                self._sessions[session_id] = Session(self, session_id)
            found = self._sessions[session_id]
        found.used_at = time.monotonic()
        return found

    def token(self, session_id: str) -> dict[str, str]:
        """What a page needs to connect; Gradio asks for the login before it calls this."""
        self.workspace.trim()
        return {"token": self.tokens.token(self.find(str(session_id)).id)}

    def left(self, session_id: str, grace: float) -> None:
        """A connection has ended; if the tab does not come back in time, its scene goes. Called in the event loop."""

        def forget() -> None:
            session = self._sessions.get(session_id)
            if session and session.left_at is not None and time.monotonic() - session.left_at >= 0.9 * grace:
                self._forget(session_id)

        asyncio.get_running_loop().call_later(grace, forget)

    def leave(self, request: gr.Request) -> None:
        """A script, or a page that never had a live connection, has gone; the others are given some time to return."""
        session = self._sessions.get(request.session_hash or "")
        if session and not session.had_page:
            self._forget(session.id)

    def close(self) -> None:
        """End the threads and remove the temporary files."""
        for session in list(self._sessions.values()):
            session.close()
        self._sessions.clear()
        self.engine.close()
        self.workspace.close()

    def _forget(self, session_id: str) -> None:
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None or session.connected:
                return
            del self._sessions[session_id]
        session.close()

    def _make_room(self) -> None:
        """Let the session go that was not used for longest and has no page, if there are too many."""
        if len(self._sessions) < self.limits.sessions:
            return
        idle = [session for session in self._sessions.values() if not session.connected]
        if not idle:
            raise UserError("Too many people use this viewer at the moment: try again later.")
        self._forget(min(idle, key=lambda session: session.used_at).id)

    def _on_evicted(self, owner: str, scene: OpenScene) -> None:
        session = self._sessions.get(owner)
        if session is not None:
            session.lose(scene)


def find_places(names: Sequence[str]) -> list[Path]:
    """The captures and scene states that a person names on the command line."""
    found: list[Path] = []
    for name in names:
        path = Path(name).expanduser()
        if path.suffix == ".safetensors":
            if not path.is_file():
                raise UserError(f"There is no scene state at {path}: check the path.")
            found.append(path)
        else:
            found += find_scenes(name)
    return found
