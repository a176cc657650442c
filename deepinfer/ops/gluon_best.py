"""The best of each row of numbers on Hopper, without a sort: ids ascending, ties to the lowest.

A long row is read once: groups of columns keep their maxima, of which the `count` best bound the
choice from below, and every thread marks the columns of its 32 that reach the bound; the few that
do are then chosen from. Few long rows are cut into parts whose best compete again. A row's choice
never depends on others, nor on how it is cut. Knows nothing of what is chosen.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.gluon_choice import (
    choose_any,
    cut,
    finish,
    key_of,
    least_of,
    listed,
    piece,
    score_of,
    sum_of,
)

_FEW = 512  # most ids for which maxima bound the choice well
_SHORT = 4096  # most columns that few are chosen from as they are; many always are
_SHORTEST = 1024
_LEAST, _MOST = 32_768, 131_072  # columns a part, if few are chosen of several parts
_DENSE = 16_384  # if many are
_PROGRAMS = 132  # multiprocessors
MOST_IDS = 2048  # of a row


class Seen(NamedTuple):
    """How many columns of each row mean anything; others are never read.

    Attributes:
        positions: int64 [rows].
        ratio: positions an entry; a row sees the first (position + 1) div `ratio` entries.
        unit: entries a block, rounded up; 1 for single ones.
        width: columns a block.
    """

    positions: Tensor
    ratio: int
    unit: int = 1
    width: int = 1


@gluon.jit
def _end(
    position_ptr, row, end, RATIO: gl.constexpr, UNIT: gl.constexpr, WIDTH: gl.constexpr
):  # fmt: skip
    """`end`, or the end of what the row sees if that comes first."""
    if RATIO > 0:
        visible = ((gl.load(position_ptr + row) + 1) // RATIO).to(gl.int32)
        end = gl.minimum(end, (visible + UNIT - 1) // UNIT * WIDTH)
    return end


@gluon.jit
def _short(
    score_ptr, block_ptr, id_ptr, value_ptr, position_ptr, columns, part,
    COUNT: gl.constexpr, PADDED: gl.constexpr, LIMIT: gl.constexpr, SIZE: gl.constexpr,
    N: gl.constexpr, VALUES: gl.constexpr,
    RATIO: gl.constexpr, UNIT: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """Choose from a part of a row, of at most N columns. With LIMIT > 0, columns are the entries
    of that many blocks; with VALUES, the scores of the chosen are written too."""
    gdc_wait()
    gdc_launch_dependents()
    row = gl.program_id(0).to(gl.int64)
    number = row * gl.num_programs(1) + gl.program_id(1)
    first = gl.program_id(1) * part
    end = _end(position_ptr, row, gl.minimum(first + part, columns), RATIO, UNIT, WIDTH)
    column = piece(first, N)
    score_ptr += row * columns
    score = gl.load(score_ptr + column, column < end, float("-inf")).to(gl.float32)
    key = key_of(score)
    many = sum_of((score > float("-inf")).to(gl.int32))
    finish(
        score, column, least_of(key), many, block_ptr + row * LIMIT, id_ptr + number * COUNT,
        value_ptr + number * COUNT, COUNT, PADDED, LIMIT, SIZE, VALUES,
        32 - score_ptr.dtype.element_ty.primitive_bitwidth,
    )  # fmt: skip


@gluon.jit
def _copy(buffer, score_ptr, start, end, index):
    """Start the copy of the columns of a step."""
    used = start + index < end
    async_copy.async_copy_global_to_shared(buffer, score_ptr + (start + index), mask=used)
    async_copy.commit_group()


@gluon.jit
def _long(
    score_ptr, block_ptr, id_ptr, value_ptr, list_ptr, word_ptr, position_ptr, columns, part,
    COUNT: gl.constexpr, PADDED: gl.constexpr, LIMIT: gl.constexpr, SIZE: gl.constexpr,
    WORDS: gl.constexpr, ROOM: gl.constexpr, STAGES: gl.constexpr,
    VALUES: gl.constexpr, RATIO: gl.constexpr, UNIT: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """As `_short` for any number of columns up to 32 * WORDS, 32 columns a thread and step."""
    gdc_wait()
    gdc_launch_dependents()
    warps: gl.constexpr = gl.num_warps()
    kind: gl.constexpr = score_ptr.dtype.element_ty
    vector: gl.constexpr = 128 // kind.primitive_bitwidth
    lanes: gl.constexpr = 32 // vector
    threads: gl.constexpr = warps * 32
    step: gl.constexpr = threads * 32
    ONE: gl.constexpr = threads == WORDS  # step
    grain: gl.constexpr = 32 - kind.primitive_bitwidth
    # Copied and looked over with neighbours in neighbouring threads, marked with them in one.
    wide: gl.constexpr = gl.BlockedLayout([1, vector], [32 // lanes, lanes], [warps, 1], [1, 0])
    own: gl.constexpr = gl.BlockedLayout([1, 32], [32, 1], [warps, 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(vector, 8 // lanes, lanes, [1, 0])
    held: gl.constexpr = 1 if ONE else STAGES
    buffers = gl.allocate_shared_memory(kind, [held, threads, 32], shared)
    row = gl.program_id(0).to(gl.int64)
    number = row * gl.num_programs(1) + gl.program_id(1)
    score_ptr += row * columns
    word_ptr += number * WORDS
    first = gl.program_id(1) * part
    end = _end(position_ptr, row, gl.minimum(first + part, columns), RATIO, UNIT, WIDTH)
    index = (gl.arange(0, threads, gl.SliceLayout(1, wide)) * 32)[:, None]
    index = index + gl.arange(0, 32, gl.SliceLayout(0, wide))[None, :]
    bit = gl.arange(0, 32, gl.SliceLayout(0, own))
    thread = gl.arange(0, threads, gl.SliceLayout(1, own))
    for s in gl.static_range(STAGES - 1):
        _copy(buffers.index(s), score_ptr, first + s * step, end, index)
    flat: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [warps, 1], [1, 0])
    best = gl.full([warps, 128], float("-inf"), gl.float32, flat)
    least = gl.to_tensor(-0x7F800000)  # the key of the least finite number
    done, due = 0, 0
    marks = gl.zeros([threads], gl.int32, gl.SliceLayout(1, own))
    for start in range(first, end, step):
        async_copy.wait_group(STAGES - 2)
        gl.thread_barrier()  # all have left the buffer that is filled next
        if not ONE:
            ahead = buffers.index((done + STAGES - 1) % STAGES)
            _copy(ahead, score_ptr, start + (STAGES - 1) * step, end, index)
        buffer = buffers.index(done % STAGES)
        score = buffer.load(wide).to(gl.float32)
        score = gl.where(start + index < end, score, float("-inf"))
        most = gl.max(score.reshape([lanes, threads // lanes, 32]), 0)
        most = gl.max(most.reshape([warps, 32, vector // 4, 4]), 2).reshape([warps, 128])
        best = gl.maximum(best, gl.convert_layout(most, flat, assert_trivial=True))
        if done == due:  # after 1, 2, 4, 8 ... steps
            key = key_of(best)
            if sum_of((best > float("-inf")).to(gl.int32)) >= COUNT:
                if done == 0:
                    least = gl.maximum(least, least_of(key))
                least = cut(key, least, COUNT, COUNT // 8, grain)
            due = 2 * due + 1
        score = buffer.load(own).to(gl.float32)
        marks = gl.sum(gl.where(score >= score_of(least), 1 << bit[None, :], 0), 1)
        left = end - start - thread * 32
        marks = gl.where(left >= 32, marks, marks & ((1 << gl.maximum(left, 0)) - 1))
        if not ONE:
            gl.store(word_ptr + done * threads + thread, marks)
        done += 1
    async_copy.wait_group(0)
    at = piece(0, WORDS)
    if ONE:
        words = gl.convert_layout(marks.reshape([warps, 32]), at.type.layout, assert_trivial=True)
    else:
        gl.thread_barrier()
        words = gl.load(word_ptr + at, at < done * threads, 0, cache_modifier=".cg")
    list_ptr += number * ROOM
    kept = listed(words, at + first // 32, list_ptr, ROOM)
    block_ptr += row * LIMIT
    id_ptr += number * COUNT
    value_ptr += number * COUNT
    if kept > ROOM:
        choose_any(
            score_ptr, block_ptr, id_ptr, value_ptr, first, end,
            COUNT, PADDED, LIMIT, SIZE, VALUES,
        )  # fmt: skip
    else:
        gl.thread_barrier()
        place = piece(0, ROOM)
        column = gl.load(list_ptr + place, place < kept, 0, cache_modifier=".cg")
        score = gl.load(score_ptr + column, place < kept, float("-inf")).to(gl.float32)
        finish(
            score, column, least, kept, block_ptr, id_ptr, value_ptr,
            COUNT, PADDED, LIMIT, SIZE, VALUES, grain,
        )  # fmt: skip


def best(
    scores: Tensor,
    count: int,
    blocks: Tensor | None = None,
    size: int = 1,
    seen: Seen | None = None,
) -> Tensor:
    """Ids of the `count` best finite scores a row, ascending, -1 trailing; ties to the lowest.

    Args:
        scores: fp32 or bf16 [rows, columns], contiguous.
        count: ids a row, at most 2048.
        blocks: int64 [rows, limit], ascending, if column j stands for the entry j mod `size` of
            block j div `size` of this list; None if it stands for entry j.
        size: entries a block.
        seen: which columns mean anything; None = all.

    Returns:
        int64 [rows, count].

    Raises:
        ValueError: `count` is too large.
    """
    if count > MOST_IDS:
        raise ValueError(f"best: {count} of a row; at most {MOST_IDS} can be chosen")
    if scores.dtype == torch.bfloat16 and scores.shape[1] % 16:  # no whole words to copy
        scores = scores.float()
    rows, columns = scores.shape
    part = _part(rows, columns, count)
    if part >= columns:
        return _launch(scores, count, blocks, size, seen, columns, alone=True)[0]
    ids, values = _launch(scores, count, blocks, size, seen, part, alone=False)
    return best(values, count, ids)


def _part(rows: int, columns: int, count: int) -> int:
    """Columns a program: whole rows, but parts of them where rows alone do not fill the device."""
    if count > _FEW:
        return _DENSE
    wanted = triton.cdiv(columns, max(1, _PROGRAMS // max(1, rows)))
    return min(max(1, triton.cdiv(wanted, _LEAST)) * _LEAST, _MOST)


def _launch(
    scores: Tensor,
    count: int,
    blocks: Tensor | None,
    size: int,
    seen: Seen | None,
    part: int,
    *,
    alone: bool,
) -> tuple[Tensor, Tensor]:
    """Ids and, unless the parts are `alone`, values of the best of every part of every row."""
    rows, columns = scores.shape
    parts = triton.cdiv(columns, part)
    device = scores.device
    ids = torch.empty((rows, parts * count), dtype=torch.int64, device=device)
    values = ids if alone else torch.empty(ids.shape, dtype=torch.float32, device=device)
    if not rows:
        return ids, values
    named, limit = (ids, 0) if blocks is None else (blocks, blocks.shape[1])
    padded = triton.next_power_of_2(count)
    common = (count, padded, limit, size)
    where, *rule = (ids, 0, 1, 1) if seen is None else seen
    if part <= _SHORT or count > _FEW:
        most = max(_SHORTEST, triton.next_power_of_2(part))
        _short[(rows, parts)](
            scores, named, ids, values, where, columns, part, *common, most, not alone, *rule,
            num_warps=max(4, most // 512), launch_pdl=True,
        )  # fmt: skip
        return ids, values
    warps = _warps(rows * parts, part, scores.element_size())
    step = 1024 * warps
    steps = triton.next_power_of_2(triton.cdiv(part, step))
    room = _FEW * (4 if steps <= 2 else 8)
    new = partial(torch.empty, dtype=torch.int32, device=device)
    _long[(rows, parts)](
        scores, named, ids, values, new((rows, parts, room)),
        new((rows, parts, steps * step // 32)), where, columns, part, *common,
        steps * step // 32, room, 2 if steps <= 2 else 3, not alone, *rule,
        num_warps=warps, launch_pdl=True, maxnreg=64 if warps == 16 else 80,
    )  # fmt: skip
    return ids, values


def _warps(programs: int, part: int, itemsize: int) -> int:
    """Sixteen if a step covers the part, or if all programs find room at once; else eight."""
    few = programs <= _PROGRAMS * (2 if itemsize == 2 else 1)
    return 16 if few or part <= 16 * 1024 else 8
