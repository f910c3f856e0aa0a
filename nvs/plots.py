"""Figures with matplotlib, drawn without a screen and alike everywhere."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from data import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, GRID = "#202226", "#70747c", "#e4e6ea"
COLORS = ("#1f5a99", "#c4552d", "#3c8d5a", "#8a5aa8", "#b08a1e", "#3a9aa8")
"""Colours of lines that are easily told apart."""


def figure(inches: tuple[float, float], rows: int = 1, columns: Sequence[float] = (1.0,)) -> tuple[Figure, list[Axes]]:
    """An empty figure of width and height in inches, and its axes row by row; `columns` are relative widths."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("Plots need the package matplotlib: pip install matplotlib.") from error
    drawn = Figure(figsize=inches, layout="constrained")
    places = list(drawn.subplots(rows, len(columns), squeeze=False, gridspec_kw={"width_ratios": list(columns)}).flat)
    for axes in places:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(GREY)
        axes.tick_params(colors=INK, labelsize=8)
        axes.xaxis.label.set(color=INK, fontsize=9)
        axes.yaxis.label.set(color=INK, fontsize=9)
    return drawn, places


def png_bytes(drawn: Figure, dpi: int = 130) -> bytes:
    """A figure as the content of a PNG file."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def inline_png(drawn: Figure) -> str:
    """A figure as the text of a data URL, for pages that are a single file."""
    return "data:image/png;base64," + base64.b64encode(png_bytes(drawn)).decode("ascii")
