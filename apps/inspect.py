"""`nvs inspect`: what a capture, a checkpoint or a scene state is, and exactly what the model gets to see of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from data import Scene
    from nvs import LaCT, SceneState, TrainedRange

MODEL_SUFFIXES = (".safetensors", ".ckpt", ".pt", ".pth")
DEFAULT_CHECKPOINT = "demo"
SHOWN_FRAMES = 8
RANGES = ("views", "fov_degrees")
"""What of a trained range is two numbers, the least and the most."""
LENS_NUMBERS = {
    "opencv": "k1 k2 p1 p2 k3 k4 k5 k6",
    "fisheye": "k1 k2 k3 k4",
    "thin_prism_fisheye": "k1 k2 p1 p2 k3 k4 sx1 sy1",
    "fov": "omega",
}


def inspect(
    path: str,
    dump: str | None = None,
    image_size: tuple[int, int] | None = None,
    checkpoint: str | None = None,
    background: str = "white",
    strict: bool = False,
    all_frames: bool = False,
    overwrite: bool = False,
) -> None:
    """Tell what a capture, a checkpoint or a scene state is, and what looks wrong with it.

    For a capture, --dump writes the cameras and the very pixels that a model would get.

      nvs inspect my_capture --dump out/check --image-size 256 256

    Args:
        path: folder, file or .zip of a capture, model file, name of a shipped model, or scene state.
        dump: folder to write cameras.json (OpenCV camera-to-world matrices, fx fy cx cy in pixels) and one png per
            photo into.
        image_size: height and width in pixels to dump at; by default each photo keeps its own size.
        checkpoint: model whose trained range the capture is compared with; by default the shipped "demo".
        background: colour behind photos with alpha: white, black, #rrggbb or r,g,b with numbers 0 to 255.
        strict: fail at the first warning instead of telling it.
        all_frames: list all frames with their numbers, counted from 0, instead of the first few.
        overwrite: dump into a folder that is not empty.
    """
    from data import UserError, check_free

    if dump is not None:
        check_free(dump, overwrite)
    if image_size is not None and min(image_size) < 1:
        raise UserError("--image-size must be two numbers of 1 or more, height and width.")
    file = Path(path)
    if not (file.is_file() and file.suffix in MODEL_SUFFIXES) and (file.exists() or not _is_shipped(path)):
        _inspect_scene(path, dump, image_size, checkpoint, background, strict, all_frames)
        return
    if dump is not None:
        raise UserError(f"{path} is not a capture: only captures can be dumped. Leave --dump out.")
    _inspect_model_file(path)


def dump_scene(scene: Scene, folder: Path, image_size: tuple[int, int] | None = None) -> None:
    """Write all cameras of a scene (in its normalised frame) and their pixels; cameras.json comes last."""
    from PIL import Image

    from data import write_atomic

    (folder / "cameras.json").unlink(missing_ok=True)
    entries = []
    for i, frame in enumerate(scene.frames):
        view = scene.load([i], image_size or frame.image_size)
        fx, fy, cx, cy = view.intrinsics[0].tolist()
        image = f"{i:04d}-{re.sub(r'[^A-Za-z0-9_.-]+', '-', frame.name).removesuffix('.png')}.png"
        with write_atomic(folder / image) as temporary:
            pixels = (view.images[0] * 255).round().byte().permute(1, 2, 0)
            Image.fromarray(pixels.numpy()).save(temporary, format="PNG")
        camera = {"fx": fx, "fy": fy, "cx": cx, "cy": cy, "c2w": view.c2w[0].tolist(), "pixel_centre": 0.5}
        entries.append({"name": frame.name, "image": image, **camera})
    content = {
        "views": entries,
        "world_to_scene": scene.world_to_scene.tolist(),
        "normalization": scene.normalization,
        "background": list(scene.background),
        "split": scene.split,
    }
    with write_atomic(folder / "cameras.json") as temporary:
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _inspect_scene(
    path: str,
    dump: str | None,
    image_size: tuple[int, int] | None,
    checkpoint: str | None,
    background: str,
    strict: bool,
    all_frames: bool,
) -> None:
    from data import UserError, open_scene

    scene = open_scene(path, background=background, strict=strict)
    rows = list(_scene_rows(scene, all_frames))
    warnings = list(scene.warnings)
    trained = _trained_range(checkpoint)
    if trained is not None:
        outside = _outside(scene, trained, image_size)
        fits = "outside" if outside else "views, sizes and angles fit; whether it knows such scenes, nvs eval tells"
        rows.append(("trained range", f"of {checkpoint or DEFAULT_CHECKPOINT}: {fits}"))
        warnings += outside
    if strict and warnings:
        raise UserError(f"{path}: {warnings[0]}. Repair this, or leave out --strict.")
    rows += [("warning", warning) for warning in warnings] + [("note", note) for note in scene.notes]
    _print(f"capture {scene.name}", rows)
    if dump is not None:
        dump_scene(scene, Path(dump), image_size)
        print(f"cameras.json and {len(scene)} pictures written to {dump}")


def _scene_rows(scene: Scene, all_frames: bool) -> Iterable[tuple[str, str]]:
    """What there is to say about a capture, as (subject, text)."""
    import numpy as np

    yield "path", str(scene.path)
    yield "format", scene.format
    yield "frames", str(len(scene))
    if scene.split:
        yield "split", ", ".join(f"{len(indices)} {name}" for name, indices in scene.split.items())
    sizes = _count(f"{f.image_size[0]}x{f.image_size[1]}" for f in scene.frames)
    yield "photo sizes", f"{sizes} (height x width)"
    fov = [_degrees(f.image_size[1], f.intrinsics[0] * f.zoom) for f in scene.frames]
    yield "view angle", f"{_span(fov)} degrees, horizontal"
    yield "lens", _count(_lens(f.distortion.model, f.distortion.parameters) for f in scene.frames)
    turned = sum(f.orientation != 1 for f in scene.frames)
    if turned:
        yield "EXIF turn", f"applied to {turned} photos"
    c2w = scene.world_to_scene @ scene.world_c2w
    distances = np.linalg.norm(c2w[:, :3, 3], axis=1)
    scale = np.cbrt(np.linalg.det(scene.world_to_scene[:3, :3]))
    yield (
        "normalisation",
        f"{scene.normalization}: world times {scale:.4g}, cameras {_span(distances.tolist())} from the origin",
    )
    behind = scene.part_meeting_behind
    yield "axes", f"central rays meet behind {behind:.0%} of the cameras" if behind else "central rays meet in front"
    shown = len(scene) if all_frames else min(len(scene), SHOWN_FRAMES)
    listed = ", ".join(f"{i} {f.name}" for i, f in enumerate(scene.frames[:shown]))
    yield "frame numbers", listed + (f", ... (--all-frames lists {len(scene)})" if shown < len(scene) else "")


def _trained_range(checkpoint: str | None) -> TrainedRange | None:
    """What the model to compare with was trained on; None if that is unknown or no model is shipped."""
    from data import UserError
    from nvs.checkpoint import read_checkpoint

    try:
        return read_checkpoint(checkpoint or DEFAULT_CHECKPOINT)[2]
    except UserError:
        if checkpoint is not None:
            raise
        return None


def _outside(scene: Scene, trained: TrainedRange, image_size: tuple[int, int] | None) -> list[str]:
    """How the views that would be chosen for this model lie outside its trained range."""
    inputs, _ = scene.choose(min(trained.views[1], len(scene.input_pool)), 0)
    scene = scene.normalize(inputs, trained.normalization)
    return list(trained.warnings_for(scene.cameras(inputs, image_size or trained.image_size)))


def _inspect_model_file(path: str) -> None:
    from nvs import SceneState, load_model
    from nvs.scene_state import is_scene_state

    if is_scene_state(path):
        _print(f"scene state {path}", _state_rows(SceneState.load(path)))
    else:
        _print(f"checkpoint {path}", _model_rows(load_model(path)))


def _state_rows(state: SceneState) -> Iterable[tuple[str, str]]:
    h, w = state.image_size
    layer = state.layers[0]
    parts = ", ".join(f"{name} {'x'.join(map(str, x.shape))}" for name, x in layer._asdict().items())
    yield "layers", f"{len(state.layers)} of {type(layer).__name__} ({parts}; {layer[0].dtype})".replace("torch.", "")
    yield "memory", f"{state.num_bytes / 2**20:.2f} MiB"
    yield "input views", f"{state.cameras.num_views} kept, {h}x{w} pixels (height x width)"
    yield "model", f"fingerprint {state.fingerprint or 'unknown'}"


def _model_rows(model: LaCT) -> Iterable[tuple[str, str]]:
    from dataclasses import asdict

    from nvs.scene_state import fingerprint

    for name, value in asdict(model.config).items():
        yield name, ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
    yield "parameters", f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} million"
    yield "fingerprint", f"{fingerprint(model.config, model.state_dict())}, which its scene states name"
    if model.trained is None:
        yield "trained range", "unknown"
        return
    for name, value in model.trained.to_dict().items():
        yield f"trained {name}", " to ".join(f"{v:.4g}" for v in value) if name in RANGES else str(value)


def _is_shipped(name: str) -> bool:
    from data import UserError
    from nvs.checkpoint import find_checkpoint

    try:
        return find_checkpoint(name).is_file()
    except UserError:
        return False


def _print(title: str, rows: Iterable[tuple[str, str]]) -> None:
    print(title)
    for subject, text in rows:
        print(f"  {subject:<20}", "".join(c if c.isprintable() else "?" for c in text))


def _count(values: Iterable[str]) -> str:
    from collections import Counter

    found = Counter(values).most_common()
    if len(found) == 1:
        return found[0][0]
    more = f" and {len(found) - 6} other kinds" if len(found) > 6 else ""
    return ", ".join(f"{n} of {value}" for value, n in found[:6]) + more


def _lens(model: str, parameters: tuple[float, ...]) -> str:
    if model == "none" or (model == "opencv" and not any(parameters)):
        return "pinhole"
    names = LENS_NUMBERS[model].split()
    numbers = " ".join(f"{name}={p:.4g}" for name, p in zip(names, parameters, strict=False) if p)
    return f"{model} {numbers} (undistorted when loaded)"


def _degrees(pixels: int, focal: float) -> float:
    import math

    return math.degrees(2 * math.atan(pixels / 2 / focal))


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"
