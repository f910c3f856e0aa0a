"""`nvs encode`: photos of a capture in, a scene state out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from data import Scene
    from nvs import LaCT, SceneState

DTYPES: dict[str, Literal["float32", "bfloat16", "float16"]] = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
DEFAULT_VIEWS = 4
"""Input views for a model that does not say how many it was trained with."""


def encode(
    checkpoint: str,
    scene: str,
    output: str | None = None,
    views: int | None = None,
    input_views: list[int] | None = None,
    image_size: tuple[int, int] | None = None,
    dtype: Literal["fp32", "bf16", "fp16"] = "fp32",
    slice_tokens: int | None = None,
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    overwrite: bool = False,
) -> None:
    """Turn the photos of a capture into a scene state, from which any view can be rendered.

    The size of the state does not depend on the number of photos.

      nvs encode demo my_capture -o scene.safetensors --views 8

    Args:
        checkpoint: model file (.ckpt, .safetensors, or a published LaCT .pt) or the name of a shipped one.
        scene: folder, file or .zip of a capture with known cameras.
        output: scene state to write, ending in .safetensors; by default NAME.safetensors in the current folder.
        views: number of photos to use, spread over the camera positions; by default what the model was trained with.
        input_views: photos to use, as numbers counted from 0 in the order of `nvs inspect`.
        image_size: height and width in pixels that photos are scaled and cropped to; by default that of the training.
        dtype: numbers in the file; bf16 and fp16 halve its size.
        slice_tokens: tokens worked on at a time; lower it when memory runs out.
        precision: of matrix products; bf16 is 1.5 to 1.7 times as fast on a CPU that has it and a little less exact;
            auto takes it where it is faster.
        device: where to compute; auto takes the GPU if there is one.
        overwrite: replace a file that exists.
    """
    from data import check_free
    from nvs import load_model
    from nvs.video import check_writable

    file = Path(output or f"{default_name(scene)}.safetensors")
    if file.suffix != ".safetensors":
        raise _error(
            f"A scene state is a safetensors file: give --output a name that ends in .safetensors, not {file}."
        )
    check_writable(file)
    check_free(file, overwrite)
    computer = pick_device(device)
    model = load_model(checkpoint, computer, pick_precision(precision, computer))
    encoded = encode_scene(model, scene, views, input_views, image_size, slice_tokens)
    encoded.state.save(file, DTYPES[dtype])
    h, w = encoded.state.image_size
    size = file.stat().st_size / 2**20
    print(
        f"{encoded.scene.name}: encoded {len(encoded.inputs)} photos at {h}x{w} pixels (height x width) into {file} "
        f"({size:.1f} MiB)"
    )


class Encoded(NamedTuple):
    """A capture and what a model has absorbed of it."""

    state: SceneState
    scene: Scene
    """The capture, normalised on the input frames."""
    inputs: list[int]
    held_out: list[int]
    """Frames that the model has not seen: those of the test split where there is one."""


def encode_scene(
    model: LaCT,
    path: str,
    views: int | None = None,
    input_views: Sequence[int] | None = None,
    image_size: tuple[int, int] | None = None,
    slice_tokens: int | None = None,
) -> Encoded:
    """Load photos as the model was trained to see them, warn where they lie outside its range, and encode them."""
    import torch

    from data import open_scene
    from nvs.evaluation import choose_image_size

    trained = model.trained
    size = choose_image_size(model, image_size)
    scene = open_scene(path, background=trained.background if trained else "white")
    inputs, held_out = choose_inputs(scene, views, input_views, trained.views[1] if trained else DEFAULT_VIEWS)
    scene = scene.normalize(inputs, trained.normalization if trained else "focus")
    photos = scene.load(inputs, image_size=size)
    warn(*scene.warnings, *(trained.warnings_for(photos) if trained else ()))
    device = next(model.parameters()).device
    with torch.inference_mode():
        state = model.encode(photos.to(device), slice_tokens=slice_tokens)
    return Encoded(state, scene, inputs, held_out)


def choose_inputs(
    scene: Scene, views: int | None, input_views: Sequence[int] | None, default: int
) -> tuple[list[int], list[int]]:
    """Input and held-out frames of a scene, from a count or from the numbers of the input frames."""
    if views is not None and input_views is not None:
        raise _error("--views and --input-views were both given: choose the number of photos, or which ones.")
    if input_views is not None:
        return _check_frames(scene, input_views)
    available = len(scene.input_pool)
    count = min(default, available) if views is None else views
    if not 1 <= count <= available:
        raise _error(f"{count} input views are not possible: {scene.name} has {available} photos to choose from.")
    inputs, held_out = scene.choose(count)
    return sorted(inputs), held_out


def default_name(path: str) -> str:
    """What a result is called after its capture or scene state, also where that is given as "." or ".."."""
    place = Path(path).expanduser().resolve()
    return (place.name if place.is_dir() else place.stem) or "scene"


def warn(*warnings: str) -> None:
    """Tell what may be wrong without being an error, one line each."""
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def pick_device(name: Literal["auto", "cpu", "cuda"]) -> str:
    """The device to compute on."""
    import torch

    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise _error("There is no usable CUDA GPU here: leave --device out, or give --device cpu.")
    return ("cuda" if available else "cpu") if name == "auto" else name


def pick_precision(name: Literal["fp32", "bf16", "auto"], device: str) -> Literal["fp32", "bf16"]:
    """The precision of matrix products; bfloat16 where it would be emulated is warned about."""
    from nvs.precision import has_bfloat16

    if name == "fp32":
        return "fp32"
    fast = has_bfloat16(device)
    if name == "bf16" and not fast:
        warn(f"this {device} has no instructions for bf16, which makes it slower than --precision fp32")
    return "bf16" if fast or name == "bf16" else "fp32"


def _check_frames(scene: Scene, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
    count = len(scene)
    if not numbers:
        raise _error("--input-views was given no number: name at least one photo, counted from 0.")
    wrong = [i for i in numbers if not 0 <= i < count]
    if wrong:
        raise _error(f"{scene.name} has no photo number {wrong[0]}: its {count} photos are numbered 0 to {count - 1}.")
    if len(set(numbers)) < len(numbers):
        raise _error("--input-views names a photo twice: give each number once.")
    chosen = set(numbers)
    others = [i for i in scene.split.get("test") or scene.split.get("val") or range(count) if i not in chosen]
    return list(numbers), others


def _error(message: str) -> Exception:
    from data import UserError

    return UserError(message)
