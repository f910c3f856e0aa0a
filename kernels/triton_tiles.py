"""Pieces that the Triton kernels share: which tile a program computes, and loading a tile within bounds."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_of(m, n, BM: tl.constexpr, BN: tl.constexpr):
    """(matrix of the batch, row indices, column indices) of this program, for a batch of m x n results.

    Eight rows of tiles are walked together, column by column, so that programs that run at the same time share operands
    in the cache. Matrix and rows are 64 bit: a batch of tokens has more than 2^31 numbers.
    """
    tiles_m = tl.cdiv(m, BM)
    tiles_n = tl.cdiv(n, BN)
    program = tl.program_id(0)
    tile = program % (tiles_m * tiles_n)
    first = tile // (8 * tiles_n) * 8
    height = tl.minimum(tiles_m - first, 8)
    within = tile % (8 * tiles_n)
    row = first + within % height
    rows = row.to(tl.int64) * BM + tl.arange(0, BM)
    cols = within // height * BN + tl.arange(0, BN)
    return (program // (tiles_m * tiles_n)).to(tl.int64), rows, cols


@triton.jit
def load_tile(matrix, rows, cols, m, n, row_stride, col_stride):
    """The tile at these row and column indices of an m x n matrix; zeros outside."""
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    return tl.load(matrix + rows[:, None] * row_stride + cols[None, :] * col_stride, mask=inside, other=0.0)
