"""`nvs eval`: how good a model is on captures, in numbers and pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from apps.encode import pick_device, pick_precision
from apps.render import show_progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from nvs.evaluation import SceneRun
    from nvs.results import Evaluation, SceneResult, SkippedScene

COLUMNS = {
    "psnr": ("PSNR\ndB", "{:.2f}"),
    "ssim": ("SSIM\n", "{:.3f}"),
    "lpips": ("LPIPS\n", "{:.3f}"),
    "psnr_foreground": ("PSNR\nin mask", "{:.2f}"),
    "chroma_error": ("colour\nerror", "{:.1f}"),
}
BASELINE_COLUMNS = {"nearest_input": "nearest\nphoto", "mean_input": "mean\nphoto"}


def eval_(
    checkpoint: str,
    scene: list[str],
    output: str = "out/eval",
    inputs: int = 4,
    targets: int = 8,
    image_size: tuple[int, int] | None = None,
    lpips_weights: str | None = None,
    views_per_batch: int = 8,
    holdout_every: int | None = None,
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    device: Literal["auto", "cpu", "cuda"] = "auto",
    overwrite: bool = False,
) -> None:
    """Compare a model's renderings with held-out photos, beside two baselines that need no model.

    For each scene some photos are encoded and others rendered. PSNR (dB), SSIM (reflect-padded) and LPIPS (VGG) are
    means over images, also inside the photos' mask where they have one; the colour error is the distance in the a*b*
    plane of CIELAB. Left in the output folder: metrics.json, metrics.csv and a picture sheet for each scene.

      nvs eval demo my_capture other_capture -o out/eval --inputs 4 --targets 8

    Args:
        checkpoint: model file (.ckpt, .safetensors, or a published LaCT .pt) or the name of a shipped one.
        scene: one or more captures (folder, file or .zip), or folders of captures.
        output: folder for the results.
        inputs: number of photos that the model is given, spread over the camera positions.
        targets: number of held-out photos of each scene to compare, evenly chosen; 0: all.
        image_size: height and width in pixels, for example 64 64; by default that of the training.
        lpips_weights: torchvision's file vgg16-397923af.pth for LPIPS; also in the variable NVS_LPIPS_WEIGHTS.
        views_per_batch: pictures rendered at a time; lower it when memory runs out.
        holdout_every: of captures whose files keep no photos from training, compare only every k-th, and give the model
            the others; by default as the model was trained, so that no training photo is compared.
        precision: of matrix products; bf16 is 1.5 to 1.7 times as fast on a CPU that has it and a little less exact;
            auto takes it where it is faster.
        device: where to compute; auto takes the GPU if there is one.
        overwrite: replace the results of an earlier evaluation in the folder.
    """
    from rich.console import Console

    from data import check_free
    from nvs import load_model
    from nvs.evaluation import Settings, evaluate
    from nvs.lpips import Lpips, load_lpips
    from nvs.results import write_csv, write_json
    from nvs.video import check_writable

    _check_there(scene)
    settings = Settings(inputs, targets or None, image_size, views_per_batch, holdout_every)
    folder = Path(output)
    check_writable(folder / "metrics.json")
    for name in ("metrics.json", "metrics.csv", "sheets"):
        check_free(folder / name, overwrite)
    place = pick_device(device)
    lpips = load_lpips(lpips_weights, place)
    model = load_model(checkpoint, place, pick_precision(precision, place))
    sheets = SheetWriter(folder / "sheets", checkpoint)
    evaluation = evaluate(model, scene, settings, lpips, sheets.draw, _progress)
    about = {
        "checkpoint": checkpoint,
        "trained": model.trained.description if model.trained else None,
        "inputs": inputs,
        "targets": targets,
        "holdout_every": holdout_every,
        "precision": model.precision,
        "lpips_weights": lpips.source if isinstance(lpips, Lpips) else None,
    }
    write_json(evaluation, folder / "metrics.json", about)
    write_csv(evaluation, folder / "metrics.csv")
    report(evaluation, Console(), checkpoint)
    print(f"written: {folder}/metrics.json, metrics.csv and a picture sheet for each scene in sheets/")


def _check_there(scenes: list[str]) -> None:
    """Refuse a path that a person has mistyped; what is only unreadable is skipped and told."""
    from glob import has_magic

    from data import UserError

    for text in scenes:
        path = Path(text).expanduser()
        in_archive = any(parent.is_file() for parent in path.parents)
        if not (path.exists() or in_archive or has_magic(text)):
            raise UserError(f"{text} does not exist. Check the path; nothing was evaluated.")


class SheetWriter:
    """Writes a picture sheet for each evaluated scene under a name of its own."""

    def __init__(self, folder: Path, checkpoint: str) -> None:
        """Write into `folder`, which is made, and rid of earlier sheets, when the first one comes."""
        self.folder, self.checkpoint = folder, checkpoint
        self.counts: dict[str, int] = {}

    def draw(self, result: SceneResult, run: SceneRun) -> None:
        """Draw and write the sheet of one scene."""
        if not self.counts and (self.folder.parent / "metrics.json").exists():
            # Of an earlier evaluation, perhaps with scenes that are not here; a training run has sheets of its own.
            for old in self.folder.glob("*.png"):
                if not old.name.startswith("step_"):
                    old.unlink()
        plain = "".join(c if c.isalnum() or c in "-_" else "_" for c in result.name) or "scene"
        count = self.counts[plain] = self.counts.get(plain, 0) + 1
        name = plain if count == 1 else f"{plain}.{count}"
        save_sheet(result, run, self.folder / f"{name}.png", Path(self.checkpoint).name)


def save_sheet(result: SceneResult, run: SceneRun, path: Path, checkpoint: str) -> None:
    """Write the picture sheet of one scene as PNG."""
    from data import write_atomic
    from nvs.sheet import picture_sheet

    sheet = picture_sheet(
        run.inputs.images,
        run.targets.images,
        run.renderings,
        title=result.name,
        note=f"checkpoint {checkpoint}",
        input_names=result.inputs,
        target_names=result.targets,
    )
    with write_atomic(path) as temporary:
        sheet.save(temporary, format="PNG")


def report(evaluation: Evaluation, console: Console, checkpoint: str) -> None:
    """Print the table, what is not available, what was skipped, and warnings."""
    console.print(_table(evaluation, checkpoint))
    console.print("[dim]nearest, mean: PSNR of the nearest input photo, and of the mean of the input photos[/]")
    for metric, reason in evaluation.unavailable.items():
        console.print(f"{metric.upper()} not available: {reason}", highlight=False, soft_wrap=True)
    if evaluation.identical:
        console.print(f"{evaluation.identical} rendering(s) equal their photo exactly and count as 100 dB")
    for result in evaluation.results:
        for warning in result.warnings:
            console.print(f"[yellow]warning[/] {result.name}: ", end="")
            console.print(warning, markup=False, highlight=False, soft_wrap=True)
    console.print(evaluation.summary, style="bold", highlight=False)
    for result in evaluation.results:
        ours, best = result.mean("psnr") or 0.0, max(result.mean("psnr", name) or 0.0 for name in BASELINE_COLUMNS)
        if ours <= best:
            told = (
                f"{result.name}: {best - ours:.2f} dB worse than copying photos; this model does not know such scenes"
            )
            console.print(told, markup=False, highlight=False, soft_wrap=True)
    for skipped in evaluation.skipped:
        console.print(f"  skipped {skipped.path}: {skipped.detail}", markup=False, highlight=False, soft_wrap=True)


def _table(evaluation: Evaluation, checkpoint: str) -> Table:
    from rich import box
    from rich.table import Table

    h, w = evaluation.image_size
    shown = [m for m in COLUMNS if m in evaluation.unavailable or evaluation.mean_over_images(m) is not None]
    title = f"{Path(checkpoint).name} at {h}x{w}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("scene", no_wrap=True)
    for header in ("photos\n", *(COLUMNS[m][0] for m in shown), *BASELINE_COLUMNS.values()):
        table.add_column(header, justify="right", no_wrap=True)
    for result in evaluation.results:
        table.add_row(result.name, str(len(result.targets)), *_cells(result.mean, shown))
    table.add_section()
    count = str(sum(len(r.targets) for r in evaluation.results))
    table.add_row("all images", count, *_cells(evaluation.mean_over_images, shown), style="bold")
    if len(evaluation.results) > 1:
        table.add_row("all scenes", "", *_cells(evaluation.mean_over_scenes, shown))
    return table


def _cells(mean: Callable[..., float | None], metrics: list[str]) -> list[str]:
    """A row's numbers: the model's metrics, then the PSNR of both baselines."""
    values = [(COLUMNS[m][1], mean(m)) for m in metrics]
    values += [(COLUMNS["psnr"][1], mean("psnr", method)) for method in BASELINE_COLUMNS]
    return ["n/a" if x is None else form.format(x) for form, x in values]


def _progress(scenes: list[Path | SkippedScene]) -> Iterable[Path | SkippedScene]:
    return show_progress(scenes, len(scenes), "evaluating")
