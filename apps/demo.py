"""`nvs demo`: everything once, with what comes with the project."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from apps.encode import pick_device
from apps.eval import save_sheet
from apps.render import WATCHABLE, write_pictures

if TYPE_CHECKING:
    from rich.console import Console

    from nvs import LaCT
    from nvs.evaluation import SceneRun
    from nvs.results import SceneResult

CHECKPOINT = "demo"

LABELS = {
    "model": "our rendering",
    "nearest_input": "nearest input photo, copied",
    "mean_input": "mean of the input photos",
}


def demo(
    output: str = "out/demo",
    scene: Literal["gso_toy", "skull"] = "skull",
    inputs: int = 4,
    frames: int = 72,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    overwrite: bool = False,
) -> None:
    """Encode a few photos of a shipped capture with the shipped model, and render views that it has not seen.

    Left in the output folder: sheet.png (input views; then held-out photo beside rendering), orbit.mp4 (a camera moving
    around the scene), state.safetensors (the encoded scene) and metrics.json.

      nvs demo -o out/demo

    Args:
        output: folder for the results.
        scene: shipped capture: skull (photos) or gso_toy (renderings of a toy).
        inputs: number of photos that the model is given, spread over the camera positions.
        frames: length of the film in pictures, at 24 per second.
        device: where to compute; auto takes the GPU if there is one.
        overwrite: replace the results of an earlier demo in the folder.
    """
    from rich.console import Console

    from data import UserError, bundled_scenes, check_free
    from nvs import load_model
    from nvs.video import check_writable

    if frames < 1:
        raise UserError(f"--frames {frames} is not possible: ask for 1 or more.")
    start = time.perf_counter()
    console = Console(highlight=False)
    folder = Path(output)
    check_writable(folder / "metrics.json")
    for name in ("sheet.png", "orbit.mp4", "state.safetensors", "metrics.json"):
        check_free(folder / name, overwrite)
    no_film = _why_no_film(folder / "orbit.mp4")
    shipped = bundled_scenes()
    if scene not in shipped:
        raise UserError(f"The shipped capture {scene} is not there; get the folder data/captures of the project again.")
    model = load_model(CHECKPOINT, pick_device(device))
    about = model.trained.description if model.trained else "nothing is known about its training"
    console.print(f"model    {CHECKPOINT}: {about}", markup=False, soft_wrap=True)

    result, run = _try_out(model, shipped[scene], inputs)
    _report(console, result, run)
    files = _write(folder, result, run, {"checkpoint": CHECKPOINT, "trained": about, "inputs": inputs})
    if no_film is None:
        files["orbit.mp4"] = _film(model, run, folder / "orbit.mp4", frames)
    else:
        console.print(f"warning  there is no film: {no_film}", style="yellow", markup=False, soft_wrap=True)
    for name, text in files.items():
        console.print(f"  {folder / name}  {text}", markup=False, soft_wrap=True)
    console.print("try next:")
    for command in next_commands(folder, _short(shipped["skull" if scene != "skull" else "gso_toy"])):
        console.print(f"  {command}", markup=False, soft_wrap=True)
    console.print(f"[dim]{time.perf_counter() - start:.1f} s in all[/]")


def _why_no_film(path: Path) -> str | None:
    """Why ffmpeg can write no film here; None if it can. What else is wrong with the place is an error."""
    from nvs.video import NoFfmpeg, check_output

    try:
        check_output(path)
    except NoFfmpeg as error:
        return str(error)
    return None


def _try_out(model: LaCT, path: Path, inputs: int) -> tuple[SceneResult, SceneRun]:
    """Encode some photos of a capture, and render and score all others."""
    from data import open_scene
    from nvs.evaluation import Settings, choose_image_size, choose_views, range_warnings, run_scene, score
    from nvs.lpips import Unavailable

    capture = open_scene(path, background=model.trained.background if model.trained else "white")
    chosen, held_out = choose_views(capture, Settings(inputs, targets=None))
    run = run_scene(model, capture, chosen, held_out, choose_image_size(model, None))
    warnings = range_warnings(model, run.inputs)
    no_lpips = Unavailable("the demo leaves it out; see nvs eval")
    return score(capture, chosen, held_out, run, no_lpips, warnings), run


def _write(folder: Path, result: SceneResult, run: SceneRun, about: dict[str, str | int]) -> dict[str, str]:
    """Write everything but the film; returns what each file holds."""
    from nvs.results import Evaluation, write_json

    run.state.save(folder / "state.safetensors")
    save_sheet(result, run, folder / "sheet.png", CHECKPOINT)
    write_json(Evaluation((result,), (), run.targets.image_size), folder / "metrics.json", about)
    return {
        "sheet.png": "input views; then held-out photo beside our rendering",
        "state.safetensors": "the encoded scene, to be rendered again",
        "metrics.json": "all numbers",
    }


def _film(model: LaCT, run: SceneRun, path: Path, frames: int) -> str:
    """Write a film of one turn around the scene and say what it shows."""
    from nvs import Renderer, trajectory

    device = next(model.parameters()).device
    # In the usual frame the point that the cameras look at is the origin, and up is +z.
    focused = model.trained is None or model.trained.normalization == "focus"
    centre, up = ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0)) if focused else (None, None)
    cameras = trajectory.orbit(run.inputs.cameras, frames, centre=centre, up=up)
    h, w = cameras.image_size
    factor = max(1, WATCHABLE // max(h, w))
    write_pictures(path, Renderer(model, run.state.to(device)), cameras, enlarge=factor)
    return f"one turn around the scene, {w}x{h} pixels" + (f" shown {factor}x" if factor > 1 else "")


def _report(console: Console, result: SceneResult, run: SceneRun) -> None:
    """Print what was done, warnings, and the scores beside both baselines."""
    from rich import box
    from rich.table import Table

    from nvs.results import BASELINES

    h, w = run.targets.image_size
    console.print(
        f"scene    {result.name}: {len(result.inputs)} input views encoded in {run.encode_seconds:.2f} s, "
        f"{len(result.targets)} held-out views rendered in {run.render_seconds:.2f} s, {w}x{h} pixels",
        markup=False,
        soft_wrap=True,
    )
    for warning in result.warnings:
        console.print(f"warning  {warning}", style="yellow", markup=False, soft_wrap=True)
    table = Table("held-out photos, mean over images", box=box.SIMPLE_HEAD)
    columns = {
        "psnr": ("PSNR dB", "{:.2f}"),
        "psnr_foreground": ("on the object", "{:.2f}"),
        "ssim": ("SSIM", "{:.3f}"),
    }
    shown = [metric for metric in columns if result.mean(metric) is not None]
    for metric in shown:
        table.add_column(columns[metric][0], justify="right")
    for method, label in LABELS.items():
        numbers = [columns[metric][1].format(result.mean(metric, method)) for metric in shown]
        table.add_row(label, *numbers, style="bold" if method == "model" else None)
    console.print(table)
    ours, best = result.mean("psnr") or 0.0, max(result.mean("psnr", method) or 0.0 for method in BASELINES)
    if ours > best:
        console.print(f"The rendering is {ours - best:.2f} dB better than the better of the two baselines.")
    else:
        console.print(
            "The rendering is no better than copying photos: the model has learned too little for this scene."
        )


def next_commands(folder: Path, capture: Path) -> list[str]:
    """Commands that go on from the demo's results, in the folder where it was called."""
    state, film = folder / "state.safetensors", folder / "spiral.gif"
    commands = [
        f"nvs render {CHECKPOINT} {state} --trajectory spiral --enlarge 4 -o {film}",
        f"nvs eval {CHECKPOINT} {capture} -o {folder / 'eval'}",
    ]
    config = Path("configs/tiny_cpu.yaml")  # its captures are named from the folder of the project
    train = [f"nvs train --config {config} --output {folder / 'training'}"] if config.is_file() else []
    return commands + train


def _short(path: Path) -> Path:
    """A path as a person in this folder would write it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
