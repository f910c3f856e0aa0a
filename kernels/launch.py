"""Tile sizes of the Triton kernels for each GPU family, and launching with the largest tiles that fit.

A program computes an m x n tile of the result and walks the inner dimension in steps of k. The first row that fits is
used; what a GPU cannot hold in shared memory falls to the next row, and is told once. No speed has been measured yet:
the rows are chosen by what `python -m kernels.inspect_build` tells without a GPU, written beside the first choices
(registers per thread, KB of shared memory); `python -m kernels.benchmark --tune` times others, with a date to put here.
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

# Last resorts of 16-bit kernels: they fit in the 64 KB of the smallest supported GPUs.
_SMALL = Tiles(64, 64, 32, 4, 2)
_NARROW = Tiles(64, 32, 32, 4, 2)
_FP32 = (Tiles(64, 64, 16, 4, 2),)
_FP32_NARROW = (Tiles(64, 32, 16, 4, 2),)

TABLE: dict[str, dict[str, tuple[Tiles, ...]]] = {
    # 2026-11-29, compiled with Triton 3.9.0, nothing spilled; speed not measured yet.
    "sm_90": {
        "hidden": (Tiles(128, 128, 64, 8, 3), _SMALL),  # 255, 144
        "gradient": (Tiles(128, 64, 64, 8, 3), _SMALL),  # 194, 168
        "second_order": (Tiles(64, 64, 32, 8, 3), _NARROW),  # 208, 96
        "token_product": (Tiles(128, 128, 64, 8, 3), _SMALL),  # 132, 80
        "symmetric": (Tiles(128, 128, 64, 8, 3), _SMALL),  # 140, 96
        "rays": (Tiles(64, 128, 32, 8, 3), _SMALL),  # 179, 44
        "ray_weight": (Tiles(128, 64, 32, 8, 3), _NARROW),  # 202, 44
    },
    # 2026-11-29, compiled with Triton 3.9.0, nothing spilled; speed not measured yet.
    "sm_80": {
        "hidden": (Tiles(128, 64, 32, 8, 3), _SMALL),  # 128, 32
        "gradient": (Tiles(64, 64, 32, 8, 3), _SMALL),  # 180, 40
        "second_order": (Tiles(64, 32, 32, 4, 3), _NARROW),  # 168, 40
        "token_product": (Tiles(128, 64, 32, 4, 3), _SMALL),  # 166, 24
        "symmetric": (Tiles(128, 128, 32, 8, 3), _SMALL),  # 187, 32
        "rays": (Tiles(64, 64, 32, 8, 3), _SMALL),  # 174, 28
        "ray_weight": (Tiles(64, 64, 32, 8, 3), _NARROW),  # 177, 28
    },
    # 2026-11-29, compiled with Triton 3.9.0, nothing spilled; speed not measured yet.
    "gfx942": {
        "hidden": (Tiles(128, 64, 32, 8, 2), _SMALL),  # 94, 16
        "gradient": (Tiles(64, 64, 32, 8, 2), _SMALL),  # 122, 20
        "second_order": (Tiles(64, 32, 32, 4, 2), Tiles(64, 32, 16, 4, 2)),  # 194, 20
        "token_product": (Tiles(128, 128, 32, 8, 2), _SMALL),  # 109, 16
        "symmetric": (Tiles(128, 128, 32, 8, 2), _SMALL),  # 90, 32
        "rays": (Tiles(64, 64, 32, 8, 2), _SMALL),  # 82, 8
        "ray_weight": (Tiles(64, 64, 32, 8, 2), _NARROW),  # 123, 8
    },
}

FP32_TABLE: dict[str, tuple[Tiles, ...]] = {
    "hidden": _FP32,
    "gradient": _FP32_NARROW,
    "second_order": _FP32_NARROW,
    "token_product": _FP32,
    "symmetric": _FP32,
    "rays": _FP32_NARROW,
    "ray_weight": (Tiles(32, 32, 16, 4, 2),),
}

_fitting: dict[tuple[str, str, int | None, bool], int] = {}


def interpreting() -> bool:
    """Whether Triton kernels run in its interpreter, on CPU tensors (set before Triton is first imported)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def tf32_allowed() -> bool:
    """Whether PyTorch was told to use tf32 in matrix products, the old or the new way."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


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
    precision = "tf32" if tf32_allowed() else "ieee"
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
