"""`nvs render`: novel views along a camera path, as a film or as pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from apps.encode import Encoded, default_name, encode_scene, pick_device, pick_precision, warn

if TYPE_CHECKING:
    from data import Cameras
    from nvs import LaCT, Renderer, SceneState
    from nvs.trajectory import CameraPath

PATHS = ("orbit", "spiral", "interpolate", "turntable", "held-out")
WATCHABLE = 256
"""Films of a small model are enlarged by a whole number to about this many pixels, so that they can be watched."""
DEFAULT_FRAMES = 96
T = TypeVar("T")


def render(
    checkpoint: str,
    scene_or_state: str,
    trajectory: str = "orbit",
    output: str | None = None,
    frames: int | None = None,
    fps: float | None = None,
    image_size: tuple[int, int] | None = None,
    enlarge: int = 1,
    zoom: float = 1.0,
    loop: bool = False,
    views: int | None = None,
    input_views: list[int] | None = None,
    views_per_batch: int = 8,
    slice_tokens: int | None = None,
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    overwrite: bool = False,
) -> None:
    """Render novel views of a capture or a scene state along a camera path.

      nvs render demo my_capture --trajectory orbit -o orbit.mp4

      nvs render demo scene.safetensors --trajectory path.json --image-size 512 768 -o pictures/

    Args:
        checkpoint: model file (.ckpt, .safetensors, or a published LaCT .pt) or the name of a shipped one.
        scene_or_state: a capture, which is encoded first, or a scene state of `nvs encode`.
        trajectory: orbit, spiral, interpolate (through the input cameras), turntable (the first input camera,
            circling), held-out (the photos that were not used), or the JSON file of a path in the capture's world.
        output: film (.mp4 or .gif) or folder for png pictures; by default NAME_TRAJECTORY.mp4 in the current folder.
        frames: number of pictures, 96 by default; path files say it themselves, and held-out takes all photos unless
            fewer are asked for.
        fps: frames per second, 24 by default or as the path file says.
        image_size: height and width of the pictures in pixels (any); by default those of encoding or of the path.
        enlarge: show every pixel so many times as large, which makes films of small models easier to watch.
        zoom: for turntable, the largest magnification, reached half way.
        loop: for interpolate, go on from the last camera to the first.
        views: number of input photos if a capture is given, spread over the camera positions.
        input_views: input photos if a capture is given, as numbers counted from 0 in the order of `nvs inspect`.
        views_per_batch: pictures rendered at a time; lower it when memory runs out.
        slice_tokens: tokens worked on at a time; lower it when memory runs out.
        precision: of matrix products; bf16 is 1.5 to 1.7 times as fast on a CPU that has it and a little less exact;
            auto takes it where it is faster.
        device: where to compute; auto takes the GPU if there is one.
        overwrite: replace a film that exists; a folder for pictures must be new or empty.
    """
    from data import check_free
    from nvs import Renderer, load_model
    from nvs.renderer import reframe
    from nvs.video import check_output

    file = _read_path_file(trajectory)
    _check_options(trajectory, frames, zoom, loop, enlarge)
    speed = fps if fps is not None else file.fps if file else 24.0
    place = output or f"{default_name(scene_or_state)}_{Path(trajectory).stem}.mp4"
    check_output(place, speed)
    check_free(place, overwrite)
    computer = pick_device(device)
    model = load_model(checkpoint, computer, pick_precision(precision, computer))
    state, encoded = _open(model, scene_or_state, views, input_views, slice_tokens)
    if file is not None:
        cameras = file.cameras.transform(state.world_to_scene)
    elif trajectory == "held-out":
        cameras = _held_out(encoded, frames, state.image_size)
    else:
        cameras = _follow(trajectory, model, state, frames or DEFAULT_FRAMES, zoom, loop)
    cameras = cameras if image_size is None else reframe(cameras, image_size)
    if model.trained and cameras.image_size not in (state.image_size, model.trained.image_size):
        warn(*model.trained.warnings_for(cameras, model.trained.views[0]))
    count, (h, w) = cameras.num_views, cameras.image_size
    write_pictures(place, Renderer(model, state, views_per_batch, slice_tokens), cameras, speed, enlarge)
    shown = f" shown {enlarge}x" if enlarge > 1 else ""
    print(f"wrote {place}: {count} picture{'s' * (count > 1)} of {h}x{w} pixels (height x width){shown}")
    if 2 * max(h, w) * enlarge <= WATCHABLE:
        print(f"They are small; --enlarge {WATCHABLE // max(h, w)} makes them easier to watch.")


def show_progress(steps: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Pass `steps` on and show how many are done and how long the rest will take."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("left"), console=Console(stderr=True), transient=True) as progress:
        yield from progress.track(steps, total, description=what)


def _read_path_file(trajectory: str) -> CameraPath | None:
    """The path of a JSON file; None if one of the known paths is asked for."""
    from data import UsageError
    from nvs.trajectory import read_path

    if trajectory in PATHS:
        return None
    if not trajectory.lower().endswith(".json"):
        raise UsageError(f"There is no trajectory {trajectory}: choose {', '.join(PATHS)} or the .json file of a path.")
    return read_path(trajectory)


def write_pictures(
    place: Path | str, renderer: Renderer, cameras: Cameras, fps: float = 24.0, enlarge: int = 1
) -> None:
    """Render what cameras see into a film or a folder, every pixel `enlarge` times as large."""
    import torch.nn.functional as F

    from nvs.video import open_video

    count, (h, w) = cameras.num_views, cameras.image_size
    with open_video(place, (h * enlarge, w * enlarge), count, fps) as video:
        for image in show_progress(renderer.frames(cameras), count, "rendering"):
            if enlarge > 1:
                image = F.interpolate(image[None], scale_factor=enlarge, mode="bicubic")[0].clamp(0, 1)
            video.write(image)


def _check_options(trajectory: str, frames: int | None, zoom: float, loop: bool, enlarge: int) -> None:
    from data import UserError

    if not 1 <= enlarge <= 64:
        raise UserError(f"--enlarge {enlarge} is not possible: give a whole number from 1 to 64.")
    if frames is not None and frames < 1:
        raise UserError(f"--frames {frames} is not possible: ask for 1 or more.")
    if frames is not None and trajectory not in PATHS:
        raise UserError(f"{trajectory} itself says how many pictures there are: leave out --frames.")
    for option, is_used, fitting in (("--zoom", zoom != 1.0, "turntable"), ("--loop", loop, "interpolate")):
        if is_used and trajectory != fitting:
            raise UserError(f"{option} works with --trajectory {fitting} only: leave one of them out.")


def _open(
    model: LaCT, path: str, views: int | None, input_views: list[int] | None, slice_tokens: int | None
) -> tuple[SceneState, Encoded | None]:
    """Load a scene state, or encode a capture."""
    from data import UserError
    from nvs import SceneState
    from nvs.scene_state import is_scene_state

    if Path(path).is_file() and (is_scene_state(path) or path.endswith(".safetensors")):
        if views is not None or input_views is not None:
            raise UserError(
                f"{path} is a scene state, whose input views are fixed: leave out --views and --input-views."
            )
        state = SceneState.load(path, next(model.parameters()).device)
        model.check_state(state)
        warn(*(model.trained.warnings_for(state.cameras, state.num_inputs) if model.trained else ()))
        return state, None
    encoded = encode_scene(model, path, views, input_views, slice_tokens=slice_tokens)
    return encoded.state, encoded


def _held_out(encoded: Encoded | None, frames: int | None, image_size: tuple[int, int]) -> Cameras:
    from data import UserError, every

    if encoded is None:
        raise UserError("A scene state holds no held-out photos: give the capture itself for --trajectory held-out.")
    chosen = encoded.held_out
    if not chosen:
        raise UserError(f"{encoded.scene.name} has no photo left that is not an input view: lower --views.")
    if frames is not None and frames < len(chosen):
        chosen = every(chosen, frames)
    return encoded.scene.cameras(chosen, image_size=image_size)


def _follow(name: str, model: LaCT, state: SceneState, frames: int, zoom: float, loop: bool) -> Cameras:
    """A path around the scene, in the scene's frame, with the lens of the input cameras."""
    from nvs import trajectory

    cameras = state.cameras
    # In this frame the point that the cameras look at is the origin, and up is +z.
    focused = model.trained is None or model.trained.normalization == "focus"
    centre, up = ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0)) if focused else (None, None)
    if name == "orbit":
        return trajectory.orbit(cameras, frames, centre=centre, up=up)
    if name == "turntable":
        return trajectory.turntable(cameras, frames, zoom=zoom, centre=centre, up=up)
    if name == "spiral":
        return trajectory.spiral(cameras, frames, centre=centre, up=up)
    return trajectory.spread(cameras, frames, loop)
