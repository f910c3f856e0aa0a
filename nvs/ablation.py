"""What an ablation found: one row for each variant, and its table as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data import write_atomic

UNTOLD = "n/a"


@dataclass(frozen=True)
class Outcome:
    """What one run (a variant with a seed) came to."""

    variant: str
    seed: int
    psnr: float
    """Mean over all held-out photos of the PSNR of each, in dB."""
    steps: int
    parameters: int
    state_bytes: int
    """Bytes of the memory states of one scene after its input views."""
    state_grows: bool
    """Whether the state grows with the input."""


@dataclass(frozen=True)
class Speed:
    """How fast a variant is, from one interleaved measurement of all variants."""

    samples_per_second: float
    """Scenes that a training step takes in per second."""
    encode_ms: float
    """Milliseconds to encode the input views of a scene."""
    render_ms: float
    """Milliseconds to render one view."""


@dataclass(frozen=True)
class Row:
    """One variant over all seeds; `failure` says why it has no result."""

    variant: str
    outcomes: tuple[Outcome, ...] = ()
    speed: Speed | None = None
    failure: str | None = None

    @property
    def psnr(self) -> float | None:
        """Mean over the seeds, in dB."""
        return statistics.fmean(o.psnr for o in self.outcomes) if self.outcomes else None

    @property
    def spread(self) -> float | None:
        """Sample standard deviation over the seeds, in dB; None for a single seed."""
        return statistics.stdev(o.psnr for o in self.outcomes) if len(self.outcomes) > 1 else None

    def gain(self, baseline: Row) -> float | None:
        """How much better (dB) than another variant, over the seeds that both have."""
        theirs = {o.seed: o.psnr for o in baseline.outcomes}
        gains = [o.psnr - theirs[o.seed] for o in self.outcomes if o.seed in theirs]
        return statistics.fmean(gains) if gains else None


@dataclass(frozen=True)
class Ablation:
    """All rows, the first being the baseline, and what they were found with."""

    rows: tuple[Row, ...]
    about: dict[str, Any]
    """Settings that are told with the table: plain values by a name that people can read."""

    def cells(self) -> list[list[str]]:
        """The table as text, the heading first."""
        heading = ["variant", "PSNR, dB", "spread, dB", "seeds", f"against {self.rows[0].variant}, dB"]
        heading += ["training, samples/s", "encode, ms", "render, ms a view", "state, KiB", "parameters"]
        return [heading, *(self._row(row) for row in self.rows)]

    def _row(self, row: Row) -> list[str]:
        if not row.outcomes:
            return [row.variant, "failed" if row.failure else UNTOLD, *[UNTOLD] * 8]
        first, speed = row.outcomes[0], row.speed
        return [
            row.variant,
            _number(row.psnr, ".2f"),
            _number(row.spread, ".2f"),
            str(len(row.outcomes)),
            _number(row.gain(self.rows[0]), "+.2f"),
            _number(speed and speed.samples_per_second, ".1f"),
            _number(speed and speed.encode_ms, ".1f"),
            _number(speed and speed.render_ms, ".2f"),
            f"{first.state_bytes / 1024:.0f}{' (grows)' if first.state_grows else ''}",
            f"{first.parameters:,}",
        ]


def write_tables(ablation: Ablation, folder: Path) -> None:
    """Write ablation.md, ablation.csv and ablation.json into a folder."""
    texts = {"md": markdown(ablation), "json": json.dumps(to_dict(ablation), indent=1, allow_nan=False) + "\n"}
    for suffix, text in texts.items():
        with write_atomic(folder / f"ablation.{suffix}") as temporary:
            temporary.write_text(text, encoding="utf-8")
    with (
        write_atomic(folder / "ablation.csv") as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        table = csv.DictWriter(file, list(_plain_row(ablation.rows[0], ablation.rows[0])))
        table.writeheader()
        for row in ablation.rows:
            table.writerow({k: "" if x is None else x for k, x in _plain_row(row, ablation.rows[0]).items()})


def markdown(ablation: Ablation) -> str:
    """The table for a document, with what was measured above and notes below."""
    heading, *rows = ablation.cells()
    lines = [f"- {name}: {value}" for name, value in ablation.about.items()]
    lines += ["", *map(_line, [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]), ""]
    lines += [
        "PSNR: mean over all held-out photos, then over the seeds; spread: sample standard deviation over the seeds.",
        "Speeds: medians of one measurement in which all variants take turns. State: float32, of one scene.",
    ]
    lines += [f"\n{row.variant} failed: {row.failure}" for row in ablation.rows if row.failure]
    return "\n".join(lines) + "\n"


def to_dict(ablation: Ablation) -> dict[str, Any]:
    """Plain values for JSON, with every seed's own number."""
    baseline = ablation.rows[0]
    rows = [
        _plain_row(row, baseline) | {"psnr_by_seed": {str(o.seed): o.psnr for o in row.outcomes}}
        for row in ablation.rows
    ]
    return {"about": ablation.about, "rows": rows}


def _plain_row(row: Row, baseline: Row) -> dict[str, Any]:
    first = row.outcomes[0] if row.outcomes else None
    return {
        "variant": row.variant,
        "psnr_db": row.psnr,
        "psnr_spread_db": row.spread,
        "seeds": len(row.outcomes),
        "psnr_against_first_db": row.gain(baseline),
        "training_samples_per_second": row.speed and row.speed.samples_per_second,
        "encode_ms": row.speed and row.speed.encode_ms,
        "render_ms_per_view": row.speed and row.speed.render_ms,
        "state_bytes": first and first.state_bytes,
        "state_grows": first and first.state_grows,
        "parameters": first and first.parameters,
        "steps": first and first.steps,
        "failure": row.failure,
    }


def _number(value: float | None, form: str) -> str:
    return UNTOLD if value is None else format(value, form)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
