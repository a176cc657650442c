"""The best of each row of numbers on Hopper, without a sort: ids ascending, ties to the lowest.

A long row is read once, straight into registers: groups of columns keep their maxima, of which the
`count` best bound the choice from below, and columns that reach the bound are marked, a byte for
eight neighbours; the few that are marked are then chosen from. Numbers of 16 bits are compared two
at a time. Long rows are cut into parts whose best compete again. A row's choice never depends on
others, nor on how it is cut. Knows nothing of what is chosen.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from torch.nn.functional import pad
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.gluon_choice import (
    choose_any,
    cut,
    dealt,
    finish,
    key_of,
    least_of,
    listed,
    ones,
    piece,
    sum_of,
)

_FEW = 512  # most ids for which maxima bound the choice well
_SHORT = 4096  # most columns that few are chosen from as they are; many always are
_SHORTEST = 1024
_LEAST, _MOST = 65_536, 262_144  # columns a part, if few are chosen of several parts
_BYTES, _LONE = 1 << 17, 16  # least bytes a part instead, if there are no more rows than this
_DENSE = 16_384  # if many are
_PROGRAMS = 264  # that run at once, two a multiprocessor
_THREADS = 512  # of a program that reads a long row
MOST_IDS = 2048  # of a row
_LARGER = gl.constexpr("max.bf16x2 $0, $1, $2;")
_REACHES = gl.constexpr("set.ge.u32.bf16x2 $0, $1, $2;")


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
def _either(a, b):
    return a | b


@gluon.jit
def _more(a, b):
    """The larger one of two fp32 numbers in words."""
    one, two = a.to(gl.float32, bitcast=True), b.to(gl.float32, bitcast=True)
    return gl.maximum(one, two).to(gl.int32, bitcast=True)


@gluon.jit
def _more_each(a, b):
    """The larger ones of two pairs of bf16 numbers in words."""
    return gl.inline_asm_elementwise(_LARGER, "=r,r,r", [a, b], gl.int32, True, 1)


@gluon.jit
def _reaching(word, least, PAIRS: gl.constexpr):
    """All bits of a word, or of a half of it, if its number is not less than that of `least`."""
    if PAIRS:
        return gl.inline_asm_elementwise(_REACHES, "=r,r,r", [word, least], gl.int32, True, 1)
    one, two = word.to(gl.float32, bitcast=True), least.to(gl.float32, bitcast=True)
    return -(one >= two).to(gl.int32)


@gluon.jit
def _within(words, left, word, PAIRS: gl.constexpr):
    """Words [eights, words] with the first `left` [eights, 1] numbers of a row, then -inf."""
    if PAIRS:
        left = left - 2 * word
        last = gl.where(left == 1, (words & 0xFFFF) | -0x800000, -0x7F0080)
        return gl.where(left >= 2, words, last)
    return gl.where(left > word, words, -0x800000)


@gluon.jit
def _groups(most, PAIRS: gl.constexpr):
    """Maxima in words [threads, words] -> fp32 [warps, 128]."""
    warps: gl.constexpr = gl.num_warps()
    flat: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [warps, 1], [1, 0])
    if PAIRS:
        low, high = (most << 16), (most & -0x10000)
        best = gl.maximum(low.to(gl.float32, bitcast=True), high.to(gl.float32, bitcast=True))
    else:
        best = gl.max(most.to(gl.float32, bitcast=True).reshape([warps * 32, 2, 4]), 1)
    return gl.convert_layout(best.reshape([warps, 128]), flat, assert_trivial=True)


@gluon.jit
def _long(
    score_ptr, block_ptr, id_ptr, value_ptr, list_ptr, mark_ptr, position_ptr, eights, part,
    COUNT: gl.constexpr, PADDED: gl.constexpr, LIMIT: gl.constexpr, SIZE: gl.constexpr,
    MARKS: gl.constexpr, ROOM: gl.constexpr, SPLIT: gl.constexpr,
    VALUES: gl.constexpr, RATIO: gl.constexpr, UNIT: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """As `_short` for any number of columns up to 32 * MARKS; `eights` and `part` count eight.

    In a step a thread looks at eight columns in each of SPLIT regions of the part, so that the
    first bound comes from everywhere. Bounds grow while more would be marked than there is ROOM.
    """
    gdc_wait()
    gdc_launch_dependents()
    PAIRS: gl.constexpr = score_ptr.dtype.element_ty.primitive_bitwidth == 16
    grain: gl.constexpr = 16 if PAIRS else 0
    width: gl.constexpr = 4 if PAIRS else 8  # words of eight columns
    warps: gl.constexpr = gl.num_warps()
    threads: gl.constexpr = warps * 32
    wide: gl.constexpr = gl.BlockedLayout([1, width], [32, 1], [warps, 1], [1, 0])
    row = gl.program_id(0).to(gl.int64)
    number = row * gl.num_programs(1) + gl.program_id(1)
    score_ptr += row * (eights * 8)
    mark_ptr += number * MARKS
    byte_ptr = mark_ptr.to(gl.pointer_type(gl.uint8), bitcast=True)
    first = gl.program_id(1) * (part * 8)
    end = gl.minimum(first + part * 8, eights * 8)
    end = gl.maximum(_end(position_ptr, row, end, RATIO, UNIT, WIDTH), first)
    word_ptr = (score_ptr + first).to(gl.pointer_type(gl.int32), bitcast=True)
    steps = (end - first + (threads * SPLIT * 8 - 1)) // (threads * SPLIT * 8)
    region = steps * threads
    index = gl.arange(0, SPLIT * threads, gl.SliceLayout(1, wide))
    index = index // threads * region + index % threads
    word = gl.arange(0, width, gl.SliceLayout(0, wide))[None, :]
    # Bits of numbers in the lower and, 16 higher, in the upper half; both halves make a byte.
    bit = (0x20001 << (2 * word)) if PAIRS else (1 << word)
    each: gl.constexpr = gl.BlockedLayout([1, width], [32, 1], [warps, 1], [1, 0])
    most = gl.full([threads, width], -0x7F0080 if PAIRS else -0x800000, gl.int32, each)
    least = gl.to_tensor(-0x7F800000)  # the key of the least finite number
    marked, newly = 0, 0
    for step in range(steps):
        eight = index + step * threads
        used = first + eight * 8 < end
        words = gl.load(word_ptr + (eight[:, None] * width + word), used[:, None])
        if first + ((SPLIT - 1) * region + (step + 1) * threads) * 8 > end:
            words = _within(words, (end - first - eight * 8)[:, None], word, PAIRS)
        parts = words.reshape([SPLIT, threads, width])
        if PAIRS:
            top = gl.convert_layout(gl.reduce(parts, 0, _more_each), each, assert_trivial=True)
            most = _more_each(most, top)
        else:
            top = gl.convert_layout(gl.reduce(parts, 0, _more), each, assert_trivial=True)
            most = _more(most, top)
        if (step == 0) | (marked + newly * (steps - step) > ROOM // 4 * 3):
            best = _groups(most, PAIRS)
            if sum_of((best > float("-inf")).to(gl.int32)) >= COUNT:
                key = key_of(best)
                if step == 0:
                    least = gl.maximum(least, least_of(key))
                least = cut(key, least, COUNT, COUNT // 8, grain, True)
        bound = least ^ ((least >> 31) & 0x7FFFFFFF)
        if PAIRS:
            bound = (bound & -0x10000) | ((bound >> 16) & 0xFFFF)
        bound = gl.full([SPLIT * threads, width], 0, gl.int32, wide) + bound
        marks = gl.reduce(_reaching(words, bound, PAIRS) & bit, 1, _either)
        if step + 1 < steps:
            counts = ones(marks).reshape([SPLIT, warps, 32]).permute((1, 0, 2))
            newly = sum_of(counts.reshape([warps, SPLIT * 32]))
            marked += newly
        gl.store(byte_ptr + eight, (marks | (marks >> 16)).to(gl.uint8), used)
    gl.thread_barrier()
    at = piece(0, MARKS)
    left = end - first - at * 32
    marks = gl.load(mark_ptr + at, cache_modifier=".cg")
    marks = gl.where(left >= 32, marks, marks & ((1 << gl.maximum(left, 0)) - 1))
    list_ptr += number * ROOM
    block_ptr += row * LIMIT
    id_ptr += number * COUNT
    value_ptr += number * COUNT
    kept = listed(marks, at + first // 32, list_ptr, ROOM)
    if kept > ROOM:
        choose_any(
            score_ptr, block_ptr, id_ptr, value_ptr, first, end,
            COUNT, PADDED, LIMIT, SIZE, VALUES,
        )  # fmt: skip
    else:
        gl.thread_barrier()
        place = dealt(kept, ROOM)
        column = gl.load(list_ptr + place, place >= 0, 0, cache_modifier=".cg")
        score = gl.load(score_ptr + column, place >= 0, float("-inf")).to(gl.float32)
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
    if scores.shape[1] % 8:
        scores = pad(scores, (0, -scores.shape[1] % 8), value=-torch.inf)
    rows, columns = scores.shape
    part = _part(rows, columns, count, scores.element_size())
    if part >= columns:
        return _launch(scores, count, blocks, size, seen, columns, alone=True)[0]
    ids, values = _launch(scores, count, blocks, size, seen, part, alone=False)
    return best(values, count, ids)


def _part(rows: int, columns: int, count: int, itemsize: int) -> int:
    """Columns a program: whole rows, but parts of them where rows alone do not fill the device."""
    if count > _FEW:
        return _DENSE
    least = _BYTES // itemsize if rows <= _LONE else _LEAST
    wanted = triton.cdiv(columns, max(1, _PROGRAMS // max(1, rows)))
    return min(max(1, triton.cdiv(wanted, least)) * least, _MOST)


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
    values = ids if alone else torch.empty(ids.shape, dtype=scores.dtype, device=device)
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
    pairs = scores.element_size() == 2
    split = (8 if part > 16_384 else 4) if pairs else (4 if part > 8192 else 2)
    room = _FEW * (4 if part <= 65_536 else 8)
    marks = max(_THREADS, triton.next_power_of_2(triton.cdiv(part, 32)))
    new = partial(torch.empty, dtype=torch.int32, device=device)
    _long[(rows, parts)](
        scores, named, ids, values, new((rows, parts, room)), new((rows, parts, marks)), where,
        columns // 8, part // 8, *common, marks, room, split, not alone, *rule,
        num_warps=_THREADS // 32, launch_pdl=True, maxnreg=64,
    )  # fmt: skip
    return ids, values
