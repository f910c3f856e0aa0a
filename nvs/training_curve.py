"""How a model became better while it was trained: what runs have written at each validation, and a picture of it."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from data import UserError, write_atomic
from nvs.plots import COLORS, GREY, GRID, INK, figure, png_bytes


class Validation(NamedTuple):
    """One validation of a run."""

    minutes: float
    """Minutes of training until then, validations included."""
    psnr: float
    """Mean PSNR of held-out photos in dB."""


def read_curve(runs: Sequence[Path]) -> tuple[list[Validation], list[float]]:
    """The validations of runs that go on from each other, and the minutes at which one run follows the other.

    Raises UserError where a run has no validation of held-out photos, or a log is damaged.
    """
    curve: list[Validation] = []
    seams: list[float] = []
    for run in runs:
        start = curve[-1].minutes if curve else 0.0
        seams += [start] if curve else []
        found = _validations(run)
        if not found:
            raise UserError(f"{run} is not the folder of a training run with validations on held-out photos.")
        curve += [Validation(start + minutes, psnr) for minutes, psnr in found]
    return curve, seams


def draw_curves(models: Mapping[str, Sequence[Path]], path: Path) -> None:
    """Draw held-out PSNR over the minutes of training as PNG, a line for each model; a model is its runs in order.

    Raises UserError where a run has no validations, a log is damaged, or matplotlib is not installed.
    """
    curves = {name: read_curve(runs) for name, runs in models.items()}
    drawn, (axes,) = figure((7.0, 3.6))
    for index, (name, (curve, seams)) in enumerate(curves.items()):
        minutes, values = [x.minutes for x in curve], [x.psnr for x in curve]
        color = COLORS[index % len(COLORS)]
        axes.plot(minutes, values, "o-", color=color, linewidth=1.6, markersize=3.5, label=name)
        for seam in seams:
            axes.axvline(seam, color=color if len(curves) > 1 else GREY, linewidth=0.8, linestyle=":")
    dotted = " (dotted: the next stage begins)" if any(seams for _, seams in curves.values()) else ""
    axes.set_xlabel("minutes of training" + dotted)
    axes.set_ylabel("PSNR on held-out photos, dB")
    axes.set_xlim(left=0)
    axes.grid(color=GRID, linewidth=0.8)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    with write_atomic(path) as temporary:
        temporary.write_bytes(png_bytes(drawn))


def _validations(run: Path) -> list[Validation]:
    """What the logs of a run say; where it was resumed from an earlier step, the later log counts."""
    by_step: dict[int, Validation] = {}
    logs = [log for log in run.glob("csv/version_*/metrics.csv") if log.parent.name.removeprefix("version_").isdigit()]
    for log in sorted(logs, key=lambda log: int(log.parent.name.removeprefix("version_"))):
        try:
            with log.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
            first = min((int(row["step"]) for row in rows), default=math.inf)
            by_step = {step: found for step, found in by_step.items() if step < first}
            for row in rows:
                if row["val/psnr"]:
                    by_step[int(row["step"])] = Validation(float(row["minutes"]), float(row["val/psnr"]))
        except (ValueError, TypeError, csv.Error) as error:
            raise UserError(f"{log} is damaged ({error}); remove it, or leave out this run.") from error
        except KeyError as error:
            if error.args[0] == "val/psnr":
                continue  # a run that was stopped before its first validation
            raise UserError(f"{log} has no column {error}: this run is older; train it anew.") from error
    return [by_step[step] for step in sorted(by_step)]
