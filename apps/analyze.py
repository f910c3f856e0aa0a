"""`nvs analyze`: what the memory layers of a checkpoint do, as a page with plots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from apps.progress import progress_bars

if TYPE_CHECKING:
    from nvs import LaCT


def analyze(
    checkpoint: str,
    scene: list[str],
    output: str = "out/report",
    compare: list[str] | None = None,
    inputs: int = 4,
    targets: int = 8,
    image_size: tuple[int, int] | None = None,
    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64),
    view_counts: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12),
    chunks: tuple[int, ...] = (1, 4, 16, 64),
    rounds: int = 5,
    target: int = 0,
    patch: tuple[int, int] | None = None,
    overwrite: bool = False,
) -> None:
    """Look into a model's memory: the four tests of memorisation, what it holds and where it reads from, its speed.

    Leaves a page (report.html, a single file with its plots) and all numbers (report.json) in the output folder.
    What has no meaning for a memory layer is told on the page with the reason.

      nvs analyze demo data/captures/gso_toy -o report/

    Args:
        checkpoint: model file (.ckpt, .safetensors, or a published LaCT .pt) or the name of a shipped one.
        scene: one or more captures (folder, file or .zip), or folders of captures.
        output: folder for the page and the numbers.
        compare: further checkpoints; those trained with gradient ascent, or with keys in place of queries, answer what
            becomes of a model that is trained that way.
        inputs: number of photos that the model is given, spread over the camera positions.
        targets: number of held-out photos of each capture to compare, evenly chosen.
        image_size: height and width in pixels, for example 64 64; by default that of the training.
        steps: numbers of inner steps to try; large models need minutes for each step on a CPU.
        view_counts: numbers of input views to try, as far as the captures have photos.
        chunks: numbers of chunks for the throughput.
        rounds: rounds of the throughput measurement.
        target: number of the target view, counted from 0, of which one patch is followed to what it reads.
        patch: row and column of this patch, counted from 0; by default the one with most contrast.
        overwrite: replace a report that is already there.
    """
    import torch

    from data import UserError, write_atomic
    from nvs import load_model
    from nvs.analysis.attention import check_place
    from nvs.analysis.page import build_page
    from nvs.analysis.probe import find_cases
    from nvs.analysis.report import Questions, ask
    from nvs.evaluation import Settings
    from nvs.video import check_writable

    page, numbers = Path(output) / "report.html", Path(output) / "report.json"
    for file in (page, numbers):
        if file.exists() and not overwrite:
            raise UserError(f"{file} is already there: choose another --output, or add --overwrite.")
        check_writable(file)
    counts = {"--steps": steps, "--view-counts": view_counts, "--chunks": chunks, "--rounds": (rounds,)}
    for option, numbers_given in counts.items():
        if not numbers_given or min(numbers_given) < 1:
            raise UserError(f"{option} takes numbers of 1 or more.")
    questions = Questions(steps, view_counts, chunks, rounds, target, patch)
    model = load_model(checkpoint)
    others = _load_others(compare or [])
    cases = find_cases(model, scene, Settings(inputs, targets, image_size))
    for case in cases:
        check_place(model, case, target, patch)
    with torch.no_grad(), progress_bars() as on_step:
        answers = ask(model, cases, questions, others, on_step)
    config = model.config
    memory = ", ".join(f"{k} {v}" for k, v in vars(config.memory).items() if k != "kind")
    about = {
        "checkpoint": checkpoint,
        "network": f"{config.layers} blocks of width {config.dim}, patches of {config.patch_size} pixels",
        "memory layer": f"{config.memory.kind} ({memory})",
        "captures": ", ".join(case.scene.name for case in cases),
        "views": f"{inputs} input views, at most {targets} held-out photos of each capture, at "
        f"{cases[0].image_size[0]}x{cases[0].image_size[1]}",
        "PSNR": f"{answers.psnr:.2f} dB, mean over the held-out photos",
    }
    with write_atomic(page) as temporary:
        temporary.write_text(
            build_page(f"Inside the memory of {Path(checkpoint).name}", about, answers), encoding="utf-8"
        )
    with write_atomic(numbers) as temporary:
        plain = {"about": about, **answers.to_dict()}
        temporary.write_text(json.dumps(plain, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(f"written: {page} and {numbers}")


def _load_others(paths: list[str]) -> dict[str, LaCT]:
    """Checkpoints to compare with, by short names that differ."""
    from nvs import load_model

    names = [Path(p).stem for p in paths]
    short = names if len(set(names)) == len(names) else paths
    return {name: load_model(path) for name, path in zip(short, paths, strict=True)}
