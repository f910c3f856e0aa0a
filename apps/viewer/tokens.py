"""Who may use the viewer's own routes: those who got a token from the page, which Gradio's login guards."""

from __future__ import annotations

import hmac
import re
import secrets
import time

LIFETIME = 60.0
"""Seconds for which a token opens a connection."""
SESSION_ID = re.compile(r"[A-Za-z0-9_-]{4,64}")


class Tokens:
    """Signs and checks; what one run of the server has signed means nothing to the next one."""

    def __init__(self, clock=time.time) -> None:
        self._secret, self._clock = secrets.token_bytes(32), clock

    def token(self, session_id: str) -> str:
        """A token that connects to a session within the next minute."""
        until = str(int(self._clock() + LIFETIME))
        return f"{session_id}.{until}.{self._sign('token', session_id, until)}"

    def check_token(self, token: str) -> str | None:
        """The session that a token is for; None if it is wrong or too old."""
        session_id, until, signature = _three(token)
        fresh = until.isdecimal() and len(until) < 16 and self._clock() <= int(until)
        right = hmac.compare_digest(signature, self._sign("token", session_id, until))
        return session_id if fresh and right and SESSION_ID.fullmatch(session_id) else None

    def key(self, session_id: str) -> str:
        """What a connected page shows with every plain request."""
        return f"{session_id}.key.{self._sign('key', session_id)}"

    def check_key(self, key: str) -> str | None:
        """The session that a key is for."""
        session_id, _, signature = _three(key)
        return session_id if hmac.compare_digest(signature, self._sign("key", session_id)) else None

    def _sign(self, *parts: str) -> str:
        return hmac.new(self._secret, "\0".join(parts).encode("utf-8", "replace"), "sha256").hexdigest()


def _three(text: str) -> tuple[str, str, str]:
    parts = text.split(".")
    if len(parts) != 3 or not text.isascii():
        return "", "", ""
    return parts[0], parts[1], parts[2]
