"""The answers as one HTML page with its figures inside."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nvs.analysis import figures
from nvs.analysis.report import Answers
from nvs.plots import inline_png

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #202226; background: #fff; margin: 0 auto;
  padding: 2rem 1.5rem 4rem; max-width: 62rem; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2.6rem 0 .3rem; }
p { margin: .4rem 0; max-width: 46rem; } .note, figcaption, dt { color: #70747c; } figure { margin: .8rem 0; }
figcaption { font-size: .88rem; max-width: 46rem; } img { max-width: 100%; height: auto; display: block; }
table { border-collapse: collapse; margin: .8rem 0; font-size: .92rem; } .wide { overflow-x: auto; }
th { font-weight: 500; color: #70747c; } th, td { text-align: right; padding: .22rem .8rem .22rem 0; }
th:first-child, td:first-child { text-align: left; } tr + tr td { border-top: 1px solid #e4e6ea; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .8rem 0; } dd { margin: 0; }
summary { color: #70747c; cursor: pointer; }
.left-out { border-left: 3px solid #d6d9de; padding-left: .8rem; color: #70747c; }
"""


@dataclass
class Section:
    """A question, what was found in a sentence or two, tables and figures."""

    title: str
    question: str
    finding: str = ""
    tables: list[list[list[str]]] = field(default_factory=list)
    drawings: list[tuple[Figure, str]] = field(default_factory=list)
    left_out: str | None = None
    folded: bool = False
    """Whether the tables are shown only when asked for."""


def build_page(title: str, about: dict[str, str], answers: Answers) -> str:
    """The whole page; `about` is told at the top."""
    rows = "".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in about.items())
    parts = [_section(section) for section in sections(answers)]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style></head>\n<body><h1>{_text(title)}</h1>\n<dl>{rows}</dl>\n{''.join(parts)}</body></html>\n"
    )


def sections(answers: Answers) -> list[Section]:
    """Every question in the order of the page."""
    builders: Sequence[Callable[[Answers], Section]] = (
        _steps,
        _alternatives,
        _overlaps,
        _updates,
        _maps,
        _views,
        _speed,
    )
    names = ("steps", "alternatives", "overlaps", "updates", "maps", "views", "throughput")
    made = []
    for name, build in zip(names, builders, strict=True):
        section = build(answers)
        section.left_out = answers.unanswered.get(name)
        made.append(section)
    return made


def _steps(answers: Answers) -> Section:
    section = Section(
        "More inner steps",
        "If the memory memorised keys and values, fitting them better would make better pictures.",
    )
    curve = answers.steps
    if curve is None:
        return section
    best = max(range(len(curve.steps)), key=lambda i: curve.psnr[i])
    section.finding = (
        f"From {curve.steps[0]} to {curve.steps[-1]} steps the inner loss goes from {curve.inner_loss[0]:.3g} to "
        f"{curve.inner_loss[-1]:.3g} and the PSNR from {curve.psnr[0]:.2f} to {curve.psnr[-1]:.2f} dB. "
        f"The PSNR is highest at {curve.steps[best]}; the model was trained with {curve.trained_steps}."
    )
    section.tables = [
        [
            ["inner steps", *map(str, curve.steps)],
            ["PSNR, dB", *(f"{x:.2f}" for x in curve.psnr)],
            ["inner loss", *(f"{x:.3g}" for x in curve.inner_loss)],
        ]
    ]
    section.drawings = [(figures.draw_steps(curve), "Dashed: the number of steps in training.")]
    return section


def _alternatives(answers: Answers) -> Section:
    section = Section(
        "Gradient ascent, and keys as queries",
        "If the memory memorised, a step that raises its inner loss would ruin it, and a token that asks with its key "
        "would be told only what it wrote itself.",
    )
    table = [["PSNR, dB", "as it is", "changed at inference", "trained that way"]]
    for found in answers.alternatives:
        retrained = ", ".join(f"{x:.2f} ({name})" for name, x in found.retrained.items())
        changed = found.reason if found.psnr is None else f"{found.psnr:.2f}"
        table.append([found.name, f"{answers.psnr:.2f}", changed or "", retrained or "no checkpoint given"])
    told = [
        f"with {found.name} at inference it changes by {found.psnr - answers.psnr:+.2f} dB"
        for found in answers.alternatives
        if found.psnr is not None
    ]
    section.finding = f"The model as it is has {answers.psnr:.2f} dB; {'; '.join(told)}." if told else ""
    section.tables = [table]
    if answers.others:
        section.tables.append(
            [["compared checkpoints", "PSNR, dB"], *([name, f"{x:.2f}"] for name, x in answers.others.items())]
        )
    return section


def _overlaps(answers: Answers) -> Section:
    section = Section(
        "Queries and keys",
        "A network that was taught what to answer to keys knows answers only where keys lie: do queries lie there? "
        "Here are both, of the same tokens of the input views.",
    )
    if not answers.overlaps:
        return section
    table = [["block", "MMD q, k", "MMD target q, k", "MMD by chance", "cosine same token", "cosine all pairs"]]
    for o in answers.overlaps:
        numbers = (o.mmd, o.mmd_targets, o.mmd_within, o.cosine_same, o.cosine_all)
        table.append([str(o.block), *(f"{x:.3f}" for x in numbers)])
    mean = sum(o.mmd for o in answers.overlaps) / len(answers.overlaps)
    chance = sum(o.mmd_within for o in answers.overlaps) / len(answers.overlaps)
    section.finding = (
        f"The maximum mean discrepancy is {mean:.2f} in the mean over blocks; two halves of the keys have "
        f"{chance:.2f}. It is 0 for equal distributions."
    )
    section.tables = [table]
    caption = "Up to 512 tokens of all heads on the two main directions of both clouds together."
    section.drawings = [(figures.draw_overlaps(answers.overlaps), caption)]
    return section


def _updates(answers: Answers) -> Section:
    section = Section(
        "What the input views change in the memory",
        "How large each matrix' update is, and how many directions it uses.",
    )
    if not answers.updates:
        return section
    table = [["block, matrix", "effective rank", "of", "norm over initial norm"]]
    for u in answers.updates:
        relative = "the initial matrix is 0" if u.relative_norm is None else f"{u.relative_norm:.3f}"
        table.append([f"{u.block}, {u.matrix}", f"{u.effective_rank:.1f}", str(u.full_rank), relative])
    shares = [u.effective_rank / u.full_rank for u in answers.updates]
    section.finding = (
        f"The effective rank is {100 * min(shares):.0f} to {100 * max(shares):.0f} % of the full one. It is exp of the "
        "entropy of the singular values as shares."
    )
    section.drawings = [(figures.draw_updates(answers.updates), "Singular values over the largest, for every block.")]
    section.tables, section.folded = [table], True
    return section


def _maps(answers: Answers) -> Section:
    section = Section(
        "Where a patch reads from",
        "What a patch reads of the input views is a sum over their patches, in attention and in fast weights that made "
        "one step, as that is linear attention. Red patches add to what is read, blue ones take away; all shares sum "
        "to 1.",
    )
    for found in answers.maps:
        row, column = found.patch
        caption = (
            f"{found.scene}: the patch in row {row}, column {column} of target view {found.target}. Green: its ray in "
            "each input view. Each row has a colour scale of its own. The percentage is the length of what is read of "
            "the input views, over that length and the length of what was learned in training together; the two may "
            "point in opposite directions and cancel, so that it is no share of a sum."
        )
        section.drawings.append((figures.draw_read_map(found), caption))
    return section


def _views(answers: Answers) -> Section:
    section = Section("Number of input views", "The same held-out photos, given more and more of the others.")
    curve = answers.views
    if curve.counts:
        ends = (f"{curve.psnr[i]:.2f} dB with {curve.counts[i]}" for i in (0, -1))
        section.finding = f"{', '.join(ends)} input views."
        section.drawings = [(figures.draw_views(curve), "")]
    return section


def _speed(answers: Answers) -> Section:
    section = Section(
        "Recurrent and parallel form",
        "Absorbing and reading chunk after chunk: the memory layer alone, random weights of this model's width, "
        "one scene, on this machine, all in turn.",
    )
    if not answers.throughput:
        return section
    counts = max((c.chunks for c in answers.throughput), key=len)
    rows = [
        [
            f"{c.layer}, {c.form}",
            *(f"{x:,.0f}" for x in c.tokens_per_second),
            *["too slow"] * (len(counts) - len(c.chunks)),
        ]
        for c in answers.throughput
    ]
    section.tables = [[["tokens a second", *(f"{x} chunks" for x in counts)], *rows]]
    section.drawings = [(figures.draw_throughput(answers.throughput), "")]
    return section


def _section(section: Section) -> str:
    parts = [f"<h2>{_text(section.title)}</h2><p class=note>{_text(section.question)}</p>"]
    if section.left_out:
        return "".join([*parts, f"<p class=left-out>{_text(section.left_out)}</p>\n"])
    if section.finding:
        parts.append(f"<p>{_text(section.finding)}</p>")
    for drawn, caption in section.drawings:
        image = f'<img alt="{_text(section.title)}" src="{inline_png(drawn)}">'
        parts.append(f"<figure>{image}<figcaption>{_text(caption)}</figcaption></figure>")
    tables = "".join(map(_table, section.tables))
    return "".join(
        [*parts, f"<details><summary>all numbers</summary>{tables}</details>" if section.folded else tables, "\n"]
    )


def _table(rows: list[list[str]]) -> str:
    heading = "".join(f"<th>{_text(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="wide"><table><tr>{heading}</tr>{body}</table></div>'


def _text(value: str) -> str:
    return html.escape(value, quote=True)
