"""What an evaluation found: scores per image, means over images and over scenes, and their files."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data import write_atomic
from nvs.metrics import PSNR_CAP

MODEL = "model"
BASELINES = ("nearest_input", "mean_input")
METHODS = (MODEL, *BASELINES)
METRICS = {
    "psnr": "dB, higher is better; of each image for values in 0..1, identical images count as 100 dB",
    "ssim": "at most 1, higher is better; Gaussian window 11, sigma 1.5, reflect-padded borders",
    "lpips": "0 is best; VGG16, LPIPS 0.1, images mapped to -1..1",
    "psnr_foreground": "dB, higher is better; PSNR inside the photos' own mask",
    "chroma_error": "0 is best; mean distance in the a*b* plane of CIELAB, inside the photos' own mask if any",
}


@dataclass(frozen=True)
class SceneResult:
    """Scores of one scene: for each method and metric one number per held-out photo."""

    name: str
    path: str
    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    scores: dict[str, dict[str, list[float]]]
    unavailable: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    encode_seconds: float = 0.0
    render_seconds: float = 0.0

    def mean(self, metric: str, method: str = MODEL) -> float | None:
        """Mean over the held-out photos; None where the metric is not available."""
        return finite_mean(self.scores[method].get(metric, []))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: means of every method, then each image."""
        return {
            "name": self.name,
            "path": self.path,
            "inputs": list(self.inputs),
            "mean": {method: {metric: self.mean(metric, method) for metric in METRICS} for method in METHODS},
            "images": [
                {"name": name, **{method: _row(self.scores[method], i) for method in METHODS}}
                for i, name in enumerate(self.targets)
            ],
            "not_available": self.unavailable,
            "warnings": list(self.warnings),
            "encode_seconds": self.encode_seconds,
            "render_seconds": self.render_seconds,
        }


@dataclass(frozen=True)
class SkippedScene:
    """A scene that was not evaluated: a short reason to count by, and one sentence."""

    path: str
    reason: str
    detail: str


@dataclass(frozen=True)
class Evaluation:
    """Results of all scenes, and those left out."""

    results: tuple[SceneResult, ...]
    skipped: tuple[SkippedScene, ...]
    image_size: tuple[int, int]

    @property
    def summary(self) -> str:
        """How many scenes count, for example "2 of 3 scenes, 1 skipped: too few photos"."""
        total = len(self.results) + len(self.skipped)
        text = f"{len(self.results)} of {total} scene{'' if total == 1 else 's'}"
        if not self.skipped:
            return text
        reasons = Counter(s.reason for s in self.skipped)
        told = [f"{reason} ({count})" if len(reasons) > 1 else reason for reason, count in reasons.items()]
        return f"{text}, {len(self.skipped)} skipped: {', '.join(told)}"

    @property
    def unavailable(self) -> dict[str, str]:
        """Metrics that some scene lacks, with the reason."""
        return {metric: reason for r in self.results for metric, reason in r.unavailable.items()}

    @property
    def identical(self) -> int:
        """Renderings that equal their photo, so that their PSNR is the cap and not a measurement."""
        return sum(x >= PSNR_CAP for r in self.results for x in r.scores[MODEL]["psnr"])

    def mean_over_images(self, metric: str, method: str = MODEL) -> float | None:
        """Every held-out photo of every scene counts the same."""
        return finite_mean([x for r in self.results for x in r.scores[method].get(metric, [])])

    def mean_over_scenes(self, metric: str, method: str = MODEL) -> float | None:
        """Every scene counts the same, whatever its number of photos."""
        means = [r.mean(metric, method) for r in self.results]
        return finite_mean([x for x in means if x is not None])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a metric that is not available is null, with the reason beside it."""
        return {
            "summary": self.summary,
            "image_size": list(self.image_size),
            "metrics": METRICS,
            "not_available": self.unavailable,
            "identical_renderings": self.identical,
            "mean_over_images": _means(self.mean_over_images),
            "mean_over_scenes": _means(self.mean_over_scenes),
            "scenes": [r.to_dict() for r in self.results],
            "skipped": [vars(s) for s in self.skipped],
        }


def finite_mean(values: Sequence[float]) -> float | None:
    """Mean of the numbers that are finite (an empty mask gives NaN); None if there are none."""
    kept = [x for x in values if math.isfinite(x)]
    return sum(kept) / len(kept) if kept else None


def write_json(evaluation: Evaluation, path: Path, about: dict[str, Any]) -> None:
    """Write everything that was found, after what it was found about (checkpoint, settings)."""
    with write_atomic(path) as temporary:
        Path(temporary).write_text(
            json.dumps(about | evaluation.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )


def write_csv(evaluation: Evaluation, path: Path) -> None:
    """Write one row for each scene, held-out photo and method; a metric that is not available is left empty.

    Bytes of a file name that are no text appear as in Python, for example caf\\udce9.
    """
    with (
        write_atomic(path) as temporary,
        Path(temporary).open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        table = csv.writer(file)
        table.writerow(["scene", "image", "method", *METRICS])
        for result in evaluation.results:
            for i, image in enumerate(result.targets):
                for method in METHODS:
                    cells = ["" if x is None else f"{x:.6g}" for x in _row(result.scores[method], i).values()]
                    table.writerow([result.name, image, method, *cells])


def _row(scores: dict[str, list[float]], index: int) -> dict[str, float | None]:
    """One image's scores by metric; None where there is no number."""
    row = {metric: scores[metric][index] if metric in scores else None for metric in METRICS}
    return {metric: x if x is not None and math.isfinite(x) else None for metric, x in row.items()}


def _means(mean: Callable[[str, str], float | None]) -> dict[str, dict[str, float | None]]:
    return {method: {metric: mean(metric, method) for metric in METRICS} for method in METHODS}
