"""The table of an ablation as a picture: every seed's PSNR as a dot, and the other numbers beside it."""

from __future__ import annotations

from pathlib import Path

from data import write_atomic
from nvs.ablation import Ablation
from nvs.plots import GREY, GRID, INK, figure, png_bytes

COLUMNS = (1, 5, 7, 8, 9)
"""Cells of the table that are written beside the dots."""
DOT, MEAN = "#8fb3d9", "#1f5a99"


def write_chart(ablation: Ablation, path: Path) -> None:
    """Draw the table as PNG; raises UserError where matplotlib is not installed."""
    heading, *cells = ablation.cells()
    count = len(ablation.rows)
    drawn, (dots, text) = figure((11.0, 1.1 + 0.34 * count), columns=(1.0, 1.25))
    places = range(count - 1, -1, -1)
    for place, row in zip(places, ablation.rows, strict=True):
        values = [outcome.psnr for outcome in row.outcomes]
        dots.plot(values, [place] * len(values), "o", color=DOT, markersize=6, zorder=2)
        if row.psnr is not None:
            dots.plot([row.psnr], [place], "|", color=MEAN, markersize=16, markeredgewidth=2.5, zorder=3)
    baseline = ablation.rows[0].psnr
    if baseline is not None:
        dots.axvline(baseline, color=GREY, linewidth=0.8, linestyle=":", zorder=1)
    dots.set_yticks(list(places), [row.variant for row in ablation.rows])
    dots.set_ylim(-0.7, count - 0.3)
    dots.set_xlabel("PSNR on held-out photos, dB (dots: seeds, bars: means)", color=INK)
    dots.grid(axis="x", color=GRID, linewidth=0.8)
    text.set_axis_off()
    text.set_xlim(0, len(COLUMNS))
    text.set_ylim(-0.7, count - 0.3)
    for x, column in enumerate(COLUMNS):
        text.text(
            x + 0.95, count - 0.35, heading[column].replace(", ", "\n"), ha="right", va="bottom", color=GREY, fontsize=9
        )
        for place, row_cells in zip(places, cells, strict=True):
            text.text(x + 0.95, place, row_cells[column], ha="right", va="center", color=INK, fontsize=9)
    with write_atomic(path) as temporary:
        temporary.write_bytes(png_bytes(drawn))
