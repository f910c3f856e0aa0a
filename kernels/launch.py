"""Tile sizes of the Triton kernels for each GPU family, and launching with the largest tiles that fit.

A program computes an m x n tile of the result and walks the inner dimension in steps of k. The first row that fits is
used; what a GPU cannot hold in shared memory falls to the next row, and is told once. Sizes with "compiled" in the
remark come from `python -m kernels.inspect_build` (registers, spills, shared memory), not from timing.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Tiles:
    """Tile sizes in elements, warps per program, and how many tiles of operands are in flight."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


SHARED_LIMIT = {"sm_90": 232448, "sm_80": 166912, "gfx942": 65536}
"""Bytes of shared memory that one program may use."""

# Last resort of every 16-bit kernel: fits in the 64 KB of the smallest supported GPUs.
_SMALL = Tiles(64, 64, 32, 4, 2)
_FP32 = (Tiles(64, 64, 16, 4, 2),)
_FP32_NARROW = (Tiles(64, 32, 16, 4, 2),)

TABLE: dict[str, dict[str, tuple[Tiles, ...]]] = {
    # 2026-11, compiled: chosen for registers and shared memory; to be replaced by timings of kernels.benchmark --tune.
    "sm_90": {
        "hidden": (Tiles(128, 128, 64, 8, 3), _SMALL),
        "gradient": (Tiles(128, 64, 64, 8, 3), _SMALL),
        "second_order": (Tiles(64, 64, 32, 8, 3), Tiles(64, 32, 32, 4, 2)),
        "token_product": (Tiles(128, 128, 64, 8, 3), _SMALL),
        "symmetric": (Tiles(128, 128, 64, 8, 3), _SMALL),
    },
    "sm_80": {
        "hidden": (Tiles(128, 64, 32, 8, 3), _SMALL),
        "gradient": (Tiles(64, 64, 32, 8, 3), _SMALL),
        "second_order": (Tiles(64, 32, 32, 4, 3), Tiles(64, 32, 32, 4, 2)),
        "token_product": (Tiles(128, 64, 32, 4, 3), _SMALL),
        "symmetric": (Tiles(128, 128, 32, 8, 3), _SMALL),
    },
    "gfx942": {
        "hidden": (Tiles(128, 64, 32, 8, 2), _SMALL),
        "gradient": (Tiles(64, 64, 32, 8, 2), _SMALL),
        "second_order": (Tiles(64, 32, 32, 4, 2), Tiles(64, 32, 16, 4, 2)),
        "token_product": (Tiles(128, 128, 32, 8, 2), _SMALL),
        "symmetric": (Tiles(128, 128, 32, 8, 2), _SMALL),
    },
}

FP32_TABLE: dict[str, tuple[Tiles, ...]] = {
    "hidden": _FP32,
    "gradient": _FP32_NARROW,
    "second_order": _FP32_NARROW,
    "token_product": _FP32,
    "symmetric": _FP32,
}

_fitting: dict[tuple[str, str, int | None, bool], int] = {}


def interpreting() -> bool:
    """Whether Triton kernels run in its interpreter, on CPU tensors (set before Triton is first imported)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def choices(kernel: str, family: str, wide: bool) -> tuple[Tiles, ...]:
    """Tile sizes to try in this order; `wide` for 32-bit operands."""
    if family == "interpreter":
        return (Tiles(32, 32, 32, 4, 1),)
    return FP32_TABLE[kernel] if wide else TABLE[family][kernel]


def family_of(device: torch.device) -> str:
    """Row of the table for a device; a GPU without a row gets the one that needs no more shared memory than it has."""
    if device.type == "cpu":
        return "interpreter"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return "gfx942"
    known = f"sm_{properties.major}{properties.minor}"
    if known in TABLE:
        return known
    shared = getattr(properties, "shared_memory_per_block_optin", 0)
    return "sm_90" if properties.major > 9 and shared >= SHARED_LIMIT["sm_90"] else "sm_80"


def processors(device: torch.device) -> int:
    """How many programs the device runs at a time at least."""
    return 4 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


@contextmanager
def only_tiles(family: str, kernel: str, tiles: Tiles) -> Iterator[None]:
    """Inside the `with` block a kernel of 16-bit operands has these tile sizes and no others."""
    before = TABLE[family]
    TABLE[family] = before | {kernel: (tiles,)}
    _fitting.clear()
    try:
        yield
    finally:
        TABLE[family] = before
        _fitting.clear()


def on_device(x: torch.Tensor) -> torch.cuda.device:
    """Context in which Triton launches on the GPU of `x`, and nothing for the interpreter's CPU tensors."""
    return torch.cuda.device(x.device if x.device.type == "cuda" else -1)


def launch(
    name: str, kernel: Any, programs: Callable[[Tiles], int], operand: torch.Tensor, *args: Any, **constants: Any
) -> None:
    """Run a kernel of the table with the first tile sizes that fit the device of `operand`."""
    from triton.runtime.errors import OutOfResources

    device, wide = operand.device, operand.dtype == torch.float32
    rows = choices(name, family_of(device), wide)
    key = (name, device.type, device.index, wide)
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    for row in range(_fitting.get(key, 0), len(rows)):
        tiles = rows[row]
        if programs(tiles) == 0:
            return
        try:
            with on_device(operand):
                kernel[(programs(tiles),)](
                    *args,
                    **constants,
                    PRECISION=precision,
                    BM=tiles.m,
                    BN=tiles.n,
                    BK=tiles.k,
                    num_warps=tiles.warps,
                    num_stages=tiles.stages,
                )
            return
        except OutOfResources as error:
            if row + 1 == len(rows):
                raise
            _fitting[key] = row + 1
            warnings.warn(
                f"kernel {name}: {tiles} does not fit this GPU ({error}); using {rows[row + 1]}", stacklevel=2
            )
