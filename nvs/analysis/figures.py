"""Figures of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from data import every
from nvs.analysis.attention import ReadMap
from nvs.analysis.distributions import Overlap
from nvs.analysis.inner_steps import StepCurve
from nvs.analysis.throughput import ThroughputCurve
from nvs.analysis.updates import Update
from nvs.analysis.view_counts import ViewCurve
from nvs.plots import COLORS, GREY, GRID, INK, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_VIEWS = 6
"""Input views that a read map is drawn over."""
MOST_BLOCKS = 8
"""Blocks that a read map is drawn for, evenly chosen."""


def draw_steps(curve: StepCurve) -> Figure:
    """PSNR and inner loss against the number of inner steps."""
    drawn, (quality, loss) = figure((9.0, 3.0), columns=(1, 1))
    quality.plot(curve.steps, curve.psnr, "o-", color=COLORS[0])
    quality.set_ylabel("PSNR on held-out photos, dB")
    loss.plot(curve.steps, curve.inner_loss, "o-", color=COLORS[1])
    loss.axhline(curve.loss_before, color=GREY, linewidth=0.8, linestyle=":")
    loss.text(curve.steps[-1], curve.loss_before, "before any step", ha="right", va="bottom", color=GREY, fontsize=8)
    loss.set_ylabel("inner loss")
    for axes in (quality, loss):
        _log_counts(axes, curve.steps)
        axes.set_xlabel("inner steps")
        if curve.trained_steps in curve.steps:
            axes.axvline(curve.trained_steps, color=GREY, linewidth=0.8, linestyle="--")
    return drawn


def draw_views(curve: ViewCurve) -> Figure:
    """PSNR against the number of input views."""
    drawn, (axes,) = figure((5.5, 3.0))
    if curve.trained:
        axes.axvspan(*curve.trained, color="#eef3f9", zorder=0)
        axes.text(curve.trained[0], 1.01, "trained range", transform=axes.get_xaxis_transform(), color=GREY, fontsize=8)
    axes.plot(curve.counts, curve.psnr, "o-", color=COLORS[0])
    axes.set_xticks(curve.counts)
    axes.set_xlabel("input views")
    axes.set_ylabel("PSNR on held-out photos, dB")
    return drawn


def draw_overlaps(overlaps: Sequence[Overlap]) -> Figure:
    """Queries and keys of every block on the plane of their two main directions."""
    columns = min(len(overlaps), 6)
    rows = -(-len(overlaps) // columns)
    drawn, places = figure((1.75 * columns, 1.95 * rows), rows=rows, columns=(1.0,) * columns)
    for axes, overlap in zip(places, overlaps, strict=False):
        for points, color, label in ((overlap.keys, COLORS[1], "keys"), (overlap.queries, COLORS[0], "queries")):
            axes.scatter(*zip(*points, strict=True), s=5, color=color, alpha=0.45, linewidths=0, label=label)
        axes.set_title(f"block {overlap.block}", fontsize=9)
        axes.set_xticks([])
        axes.set_yticks([])
    for axes in places[len(overlaps) :]:
        axes.set_axis_off()
    places[0].legend(fontsize=7, markerscale=2, loc="best")
    return drawn


def draw_updates(updates: Sequence[Update]) -> Figure:
    """Singular values of every update, effective ranks and relative norms over the blocks."""
    names = list(dict.fromkeys(u.matrix for u in updates))
    drawn, places = figure((3.1 * (len(names) + 1), 3.0), columns=(1.0,) * (len(names) + 1))
    last = max(u.block for u in updates)
    for axes, name in zip(places, names, strict=False):
        for update in (u for u in updates if u.matrix == name):
            shade = 0.25 + 0.75 * update.block / max(last, 1)
            values = [x / max(update.singular_values[0], 1e-30) for x in update.singular_values]
            axes.plot(range(1, len(values) + 1), values, color=COLORS[0], alpha=shade, linewidth=1.2)
        axes.set_ylim(0, 1.05)
        axes.set_title(f"{name}: singular values", fontsize=9)
        axes.set_xlabel("number (dark: later blocks)")
    places[0].set_ylabel("over the largest")
    for name, color in zip(names, COLORS, strict=False):
        chosen = [u for u in updates if u.matrix == name]
        shares = [100 * u.effective_rank / u.full_rank for u in chosen]
        places[-1].plot([u.block for u in chosen], shares, "o-", color=color, label=name)
    places[-1].set_ylim(0, 105)
    places[-1].set_title("effective rank, % of full", fontsize=9)
    places[-1].set_xlabel("block")
    places[-1].legend(fontsize=8)
    return drawn


def draw_throughput(curves: Sequence[ThroughputCurve]) -> Figure:
    """Tokens per second over the number of chunks."""
    drawn, (axes,) = figure((7.0, 3.4))
    layers = list(dict.fromkeys(c.layer for c in curves))
    for curve in curves:
        dashes = "-" if curve.form == "recurrent" else "--"
        color = COLORS[layers.index(curve.layer) % len(COLORS)]
        axes.plot(
            curve.chunks, curve.tokens_per_second, "o" + dashes, color=color, label=f"{curve.layer}, {curve.form}"
        )
    axes.set_yscale("log")
    _log_counts(axes, max((c.chunks for c in curves), key=len))
    axes.set_xlabel("chunks of 64 tokens")
    axes.set_ylabel("tokens per second")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return drawn


def draw_read_map(found: ReadMap) -> Figure:
    """The followed patch in its photo, and for every block where it reads from, over the input photos."""
    shown = range(min(MOST_VIEWS, found.inputs.num_views))
    blocks = every(range(len(found.shares)), MOST_BLOCKS)
    rows, columns = len(blocks) + 1, len(shown) + 1
    height, width = found.inputs.image_size
    drawn, places = figure((1.5 * columns, (1.5 * height / width + 0.06) * rows), rows=rows, columns=(1.0,) * columns)
    for axes in places:
        axes.set_axis_off()
    _photo(places[0], found.targets.images[found.target])
    places[0].set_title("the patch", fontsize=8)
    _frame_patch(places[0], found.patch, height // found.grid[0])
    for view in shown:
        _photo(places[1 + view], found.inputs.images[view])
        places[1 + view].set_title(f"input {view}", fontsize=8)
        _line(places[1 + view], found.rays[view])
    for block, row in zip(blocks, range(1, rows), strict=True):
        label, *views = places[row * columns : (row + 1) * columns]
        text = f"block {block}\n{100 * found.from_views[block]:.0f} % from views"
        label.text(0.98, 0.5, text, transform=label.transAxes, ha="right", va="center", color=INK, fontsize=8)
        limit = found.shares[block].abs().max().item() or 1.0
        for view, axes in zip(shown, views, strict=True):
            _photo(axes, found.inputs.images[view], 0.35)
            shares = found.shares[block][view] / limit
            axes.imshow(
                shares.numpy(),
                extent=(-0.5, width - 0.5, height - 0.5, -0.5),
                cmap="RdBu_r",
                vmin=-1,
                vmax=1,
                alpha=shares.abs().clamp(0, 1).pow(0.5).numpy(),
                interpolation="nearest",
            )
            _line(axes, found.rays[view])
    return drawn


def _photo(axes: Axes, image, strength: float = 1.0) -> None:
    pixels = image.permute(1, 2, 0).clamp(0, 1)
    axes.imshow((1 - strength + strength * pixels).numpy(), interpolation="nearest")
    axes.set_axis_on()
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set(visible=True, color=GRID)


def _frame_patch(axes: Axes, patch: tuple[int, int], size: int) -> None:
    from matplotlib.patches import Rectangle

    corner = (patch[1] * size - 0.5, patch[0] * size - 0.5)
    axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor="#d0021b", linewidth=1.5))


def _line(axes: Axes, points: list[tuple[float, float]]) -> None:
    if not points:
        return
    limits = axes.get_xlim(), axes.get_ylim()
    axes.plot(*zip(*points, strict=True), color="#2f9e44", linewidth=0.9)
    axes.set_xlim(limits[0])
    axes.set_ylim(limits[1])


def _log_counts(axes: Axes, counts: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(counts), [str(x) for x in counts])
    axes.minorticks_off()
