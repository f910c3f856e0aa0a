"""A viewer with a tiny model, without a page, and what tests of it need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tiny import make_model

import nvs
from apps.viewer.progress import Progress
from apps.viewer.server import Viewer
from apps.viewer.session import Session
from apps.viewer.workspace import Limits

TRAINED = nvs.TrainedRange(views=(2, 4), image_size=(24, 32), fov_degrees=(40.0, 60.0), description="a tiny model")
SESSION = "session-one"


def make_viewer(places: list[Path], limits: Limits | None = None, trained: bool = True, **more: Any) -> Viewer:
    model = make_model()
    model.trained = TRAINED if trained else None
    return Viewer(model, "tiny", places, limits, **more)


def finish(steps: Iterator[Progress]) -> list[Progress]:
    return list(steps)


def opened(viewer: Viewer, session_id: str = SESSION, source: str = "given:0") -> Session:
    session = viewer.find(session_id)
    finish(session.open(source))
    return session


def home(session: Session) -> dict[str, Any]:
    scene = session.describe()
    assert scene is not None
    return scene["home"]
