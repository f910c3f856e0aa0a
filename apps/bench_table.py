"""The table of `nvs bench`: what was measured, and how ours compares with the plain version."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

PLAIN = "plain fp32"
WAYS = (PLAIN, "ours fp32", "ours bf16")


def speed_table(times: dict[str, dict[str, list[float]]], peaks: dict[str, dict[str, int]], title: str) -> Table:
    """Medians of seconds by task and way, then peak memory in bytes; ratios are to the plain version."""
    from rich.table import Table

    table = Table("task", "", *WAYS, "fp32 / plain", "bf16 / plain", title=title)
    for task, ways in times.items():
        _add(table, task, "s", [statistics.median(ways[way]) for way in WAYS])
    for task, found in peaks.items():
        _add(table, task, "MiB", [found[way] / 2**20 for way in WAYS])
    return table


def _add(table: Table, task: str, unit: str, values: list[float]) -> None:
    plain, *ours = values
    numbers = [f"{value:.3f}" if unit == "s" else f"{value:.0f}" for value in values]
    table.add_row(task, unit, *numbers, *(f"{value / plain:.2f}" if plain else "" for value in ours))


def in_words(capability: str) -> str:
    """What PyTorch uses of this CPU, and whether it has instructions for bfloat16."""
    from nvs.precision import has_bfloat16

    return f"{capability}, {'with' if has_bfloat16('cpu') else 'without'} bf16 instructions"
