"""Films along a camera path: what `nvs render --trajectory` makes, one picture at a time between others' turns."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

from torch import Tensor

from apps.viewer.engine import Engine, Work
from apps.viewer.paths import film_cameras
from apps.viewer.progress import Clock, Progress
from apps.viewer.scenes import OpenScene
from apps.viewer.sizes import Size
from data import UserError
from nvs.renderer import reframe
from nvs.video import open_video

Kind = Literal["mp4", "gif", "png"]


def make_film(
    scene: OpenScene, engine: Engine, content: dict[str, Any], kind: str, size: Size, folder: Path
) -> Iterator[Progress]:
    """Render a path into `folder` as NAME.mp4, NAME.gif or a .zip of png pictures; the last progress names the file.

    Closing the iterator stops the work and leaves no file.
    """
    if kind not in get_args(Kind):
        raise UserError(f"There is no film of kind {kind}: choose {', '.join(get_args(Kind))}.")
    cameras, fps = film_cameras(content, scene)
    cameras = reframe(cameras, size)
    name = "".join(c for c in scene.name if c.isalnum() or c in "-_") or "scene"
    pictures = folder / f"{name}_pictures"
    place = pictures if kind == "png" else folder / f"{name}.{kind}"
    count, clock = cameras.num_views, Clock()
    frames = scene.renderer.frames(cameras)
    with open_video(place, size, count, fps) as film:
        yield clock.progress("rendering", 0, count)
        for done in range(1, count + 1):
            film.write(engine.run(lambda: _next(frames), Work.EXPORT))
            yield clock.progress("rendering", done, count)
    if kind == "png":
        (pictures / "path.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        place = Path(shutil.make_archive(str(pictures), "zip", pictures))
        shutil.rmtree(pictures)
    yield Progress("done", count, count, 0.0, str(place))


def _next(frames: Iterator[Tensor]) -> Tensor:
    return next(frames).cpu()
