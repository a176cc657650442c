"""The best of each row of numbers in Triton, without a sort: ids ascending, ties to the lowest.

One program a row. Four histograms over the bytes of the scores, read as ordered integers, find the
last score that is taken and how many of its equals are; a fifth pass writes the ids in their order.
Counts are integers, so a row's choice never depends on others. Knows nothing of what is chosen.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_BLOCK = 8192  # most columns at a time; a row that fits is read once


@triton.jit
def _ranks(score_ptr, start, columns, BLOCK: tl.constexpr):
    """Columns from `start` on, their scores as uint32 in the same order, and which are finite."""
    column = start + tl.arange(0, BLOCK)
    score = tl.load(score_ptr + column, column < columns, float("-inf")) + 0.0  # no negative zero
    bits = score.to(tl.int32, bitcast=True)
    flipped = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return column, flipped.to(tl.uint32, bitcast=True) ^ 0x80000000, score > float("-inf")


@triton.jit
def _choose(
    score_ptr, block_ptr, id_ptr, columns,
    COUNT: tl.constexpr, PADDED: tl.constexpr, LIMIT: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    """COUNT ids of one row. With LIMIT > 0, columns are the entries of that many blocks."""
    gdc_wait()
    gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    score_ptr += row * columns
    id_ptr += row * COUNT
    digits = tl.arange(0, 256)
    column, rank, finite = _ranks(score_ptr, 0, columns, BLOCK)
    last, left = tl.full([], 0, tl.uint32), tl.full([], COUNT, tl.int32)
    for digit in tl.static_range(4):
        counts = tl.zeros([256], tl.int32)
        for start in range(0, columns, BLOCK):
            if not ONCE:
                column, rank, finite = _ranks(score_ptr, start, columns, BLOCK)
            here = finite
            if digit > 0:
                here = here & ((rank >> (32 - 8 * digit)) == last)
            byte = ((rank >> (24 - 8 * digit)) & 255).to(tl.int32)
            counts += tl.histogram(byte, 256, mask=here)
        from_here = tl.sum(counts, 0) - tl.cumsum(counts, 0) + counts
        if digit == 0:
            left = tl.minimum(left, tl.sum(counts, 0))
        own = tl.max(tl.where(from_here >= left, digits, 0), 0)
        left -= tl.sum(tl.where(digits > own, counts, 0), 0)
        last = (last << 8) | own.to(tl.uint32)
    taken, equals = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    for start in range(0, columns, BLOCK):
        if not ONCE:
            column, rank, finite = _ranks(score_ptr, start, columns, BLOCK)
        equal = (finite & (rank == last)).to(tl.int32)
        before = equals + tl.cumsum(equal, 0) - equal
        take = finite & ((rank > last) | ((equal > 0) & (before < left)))
        count = take.to(tl.int32)
        place = taken + tl.cumsum(count, 0) - count
        ids = column.to(tl.int64)
        if LIMIT > 0:
            block = tl.load(block_ptr + row * LIMIT + column // SIZE, take, 0)
            ids = block * SIZE + column % SIZE
        tl.store(id_ptr + place, ids, take)
        taken += tl.sum(count, 0)
        equals += tl.sum(equal, 0)
    place = tl.arange(0, PADDED)
    none = tl.full([PADDED], -1, tl.int64)
    tl.store(id_ptr + place, none, (place >= taken) & (place < COUNT))


def best(scores: Tensor, count: int, blocks: Tensor | None = None, size: int = 1) -> Tensor:
    """Ids of the `count` best finite scores a row, ascending, -1 trailing; ties to the lowest.

    Args:
        scores: fp32 [rows, columns], contiguous.
        count: ids a row.
        blocks: int64 [rows, limit], ascending, if column j stands for the entry j mod `size` of
            block j div `size` of this list; None if it stands for entry j.
        size: entries a block.

    Returns:
        int64 [rows, count].
    """
    rows, columns = scores.shape
    block = min(_BLOCK, max(256, triton.next_power_of_2(columns)))
    ids = torch.empty((rows, count), dtype=torch.int64, device=scores.device)
    if rows:
        _choose[(rows,)](
            scores, ids if blocks is None else blocks, ids, columns, count,
            triton.next_power_of_2(count), 0 if blocks is None else blocks.shape[1], size, block,
            columns <= block, num_warps=max(4, block // 512), launch_pdl=True,
        )  # fmt: skip
    return ids
