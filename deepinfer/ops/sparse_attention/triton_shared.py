"""Sparse attention of a slice over decoded keys: two groups of warps multiply, one brings keys.

A program takes one token after another, parts of 64 slots in pairs. One group scores the even part
of a pair, the other the odd one; each hands its numerators to the other through shared memory and
adds both parts to its half of the channels, the even one first. Keys lie in memory as rows of bf16;
the third group copies them into a buffer for even and one for odd parts, in halves of channels.
Barriers in shared memory say what is full, free or ready. Numerators are relative to a running
power of two, sums run in list order and none is split: the bits are those of triton_split.py.
Knows nothing of records.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.sparse_attention.triton_attend import (
    GROWN,
    LOG2_E,
    START,
    own_sum,
    unknown_zero,
    whole_sum,
)
from deepinfer.ops.sparse_attention.triton_bring import THREADS, bring


@gluon.jit
def _few(x, sums):
    """A number for each head, as factor of sums [64, 2, 4]."""
    few: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, sums.type.layout))
    return gl.convert_layout(x, few, assert_trivial=True)[:, None, None]


@gluon.jit
def _raised(score, row, scale):
    """Powers of two to the scores, relative to the highest of each head, and that."""
    score = gl.where((row >= 0)[None, :], score * scale, float("-inf"))
    high = gl.ceil(gl.maximum(gl.max(score, 1), START))
    return gl.exp2(score - high[:, None]), high


@gluon.jit
def _rounded(share, step):
    """Numerators in bf16, first relative to their part's maximum, then to the running one."""
    return (share.to(gl.bfloat16).to(gl.float32) * step[:, None]).to(gl.bfloat16)


@gluon.jit
def _shrunk(out, shrink):
    """Sums times a power of two for each head, where it is written: it must not be postponed."""
    lines: gl.constexpr = gl.SliceLayout(1, out.type.layout)
    by = gl.expand_dims(gl.convert_layout(shrink, lines, assert_trivial=True), 1)
    return gl.inline_asm_elementwise(
        "mul.rn.f32 $0, $1, $2;", "=f,f,f", [out, by], gl.float32, False, 1
    )


@gluon.jit
def _score(q, keys, full, part: gl.constexpr, phase, none):
    """Start to multiply a part with the queries, each half of the channels once it is there."""
    zero = unknown_zero()
    mbarrier.wait(full.index(2 * part), phase)
    fence_async_shared()
    key = keys.index(zero + 2 * part).permute((1, 0))
    score = warpgroup_mma(q.index(zero), key, none, use_acc=False, is_async=True)
    mbarrier.wait(full.index(2 * part + 1), phase)
    fence_async_shared()
    key = keys.index(zero + 2 * part + 1).permute((1, 0))
    return warpgroup_mma(q.index(zero + 1), key, score, is_async=True)


@gluon.jit
def _next(q, keys, full, free, half: gl.constexpr, pair, rows, row, out, none):
    """Score the group's part of the next pair, which comes when the sums of this one are complete.

    Both groups free their halves of the odd part first: the odd group waits for their new content.
    """
    out = warpgroup_mma_wait(0, [out])
    gl.thread_barrier()
    mbarrier.arrive(free.index(2 + half), count=1)
    score = _score(q, keys, full, half, pair + 1 & 1, none)
    row = rows.load(row.type.layout)
    return warpgroup_mma_wait(0, [score]), row, out


@gluon.jit
def _even(
    keys, shares, highs, odd_sums, free, ready, pair, score, row, out, high, total, scale,
    operand: gl.constexpr,
):  # fmt: skip
    """Add a pair of parts to the left half of the channels, given scores of the even one.

    The last product is only started. Returns sums, highest scores and denominators.
    """
    share, own_high = _raised(score, row, scale)
    before = high
    high = gl.maximum(high, own_high)
    shrink, step = gl.exp2(before - high), gl.exp2(own_high - high)
    own = own_sum(share)
    total = total * _few(shrink, own) + own * _few(step, own)
    share = _rounded(share, step)
    mbarrier.wait(free.index(1), pair & 1 ^ 1)  # the other group has read the numerators before
    shares.index(0).store(share)
    highs.index(0).store(high)
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(ready.index(0), count=1)
    out = _shrunk(out, shrink)
    zero = unknown_zero()
    share = gl.convert_layout(share, operand, assert_trivial=True)
    out = warpgroup_mma(share, keys.index(zero), out, is_async=True)
    mbarrier.wait(ready.index(1), pair & 1)
    before = high
    high = highs.index(1).load(high.type.layout)
    shrink = gl.exp2(before - high)
    total = total * _few(shrink, total) + odd_sums.load(total.type.layout)
    fence_async_shared()
    out = warpgroup_mma_wait(0, [out])
    gl.thread_barrier()
    mbarrier.arrive(free.index(0), count=1)
    out = _shrunk(out, shrink)
    out = warpgroup_mma(shares.index(zero + 1), keys.index(zero + 2), out, is_async=True)
    return out, high, total


@gluon.jit
def _odd(
    keys, shares, highs, odd_sums, free, ready, pair, score, row, out, high, scale,
    operand: gl.constexpr,
):  # fmt: skip
    """The same for the right half, given scores of the odd part; denominators go to the other."""
    share, own_high = _raised(score, row, scale)
    own = own_sum(share)
    mbarrier.wait(ready.index(0), pair & 1)
    before = highs.index(0).load(high.type.layout)
    fence_async_shared()
    out = _shrunk(out, gl.exp2(high - before))
    zero = unknown_zero()
    out = warpgroup_mma(shares.index(zero), keys.index(zero + 1), out, is_async=True)
    high = gl.maximum(before, own_high)
    shrink, step = gl.exp2(before - high), gl.exp2(own_high - high)
    share = _rounded(share, step)
    mbarrier.wait(free.index(2), pair & 1 ^ 1)  # the other group has read the numerators before
    shares.index(1).store(share)
    highs.index(1).store(high)
    odd_sums.store(own * _few(step, own))
    fence_async_shared()
    gl.thread_barrier()
    mbarrier.arrive(ready.index(1), count=1)
    share = gl.convert_layout(share, operand, assert_trivial=True)
    out = warpgroup_mma_wait(0, [out])
    gl.thread_barrier()
    mbarrier.arrive(free.index(1), count=1)
    out = _shrunk(out, shrink)
    out = warpgroup_mma(share, keys.index(zero + 3), out, is_async=True)
    return out, high


@gluon.jit
def _store(
    half: gl.constexpr, done, out_ptr, cos_ptr, sin_ptr, first,
    HEADS: gl.constexpr, WIDTH: gl.constexpr, ROTATED: gl.constexpr, TAIL: gl.constexpr,
):  # fmt: skip
    """Store half of the channels of 64 heads; the last ROTATED pairs are rotated backwards."""
    warps: gl.constexpr = gl.num_warps()
    own: gl.constexpr = WIDTH // 2
    wide: gl.constexpr = min(32, own // 8)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // wide, wide], [warps, 1], [1, 0])
    last: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    pairs: gl.constexpr = TAIL // 2
    if half == 1:  # what takes longest first
        value = done.slice(own - TAIL, TAIL, 1).load(last).to(gl.float32)
        even, odd = value.reshape([64, pairs, 2]).split()
        pair = gl.arange(0, pairs, gl.SliceLayout(0, even.type.layout)) - (pairs - ROTATED)
        turns = (pair >= 0)[None, :]
        cos = gl.load(cos_ptr + pair, pair >= 0, 1.0)[None, :]
        sin = gl.load(sin_ptr + pair, pair >= 0, 0.0)[None, :]
    out_ptr += half * own
    head = first + gl.arange(0, 64, gl.SliceLayout(1, layout))
    column = gl.arange(0, own, gl.SliceLayout(0, layout))
    kept = (head < HEADS)[:, None]
    if half == 1:
        kept = kept & (column < own - TAIL)[None, :]
    gl.store(out_ptr + ((head * WIDTH)[:, None] + column[None, :]), done.load(layout), kept)
    if half == 1:
        value = gl.join(
            gl.where(turns, even * cos + odd * sin, even),
            gl.where(turns, odd * cos - even * sin, odd),
        ).to(gl.bfloat16)
        value = gl.convert_layout(value.reshape([64, TAIL]), last)
        head = first + gl.arange(0, 64, gl.SliceLayout(1, last))
        column = own - TAIL + gl.arange(0, TAIL, gl.SliceLayout(0, last))
        at = out_ptr + ((head * WIDTH)[:, None] + column[None, :])
        gl.store(at, value, (head < HEADS)[:, None])


@gluon.jit
def _multiply(
    half: gl.constexpr, q, keys, shares, highs, odd_sums, rows, full, free, ready, q_full, q_free,
    sink_ptr, out_ptr, cos_ptr, sin_ptr, begin, end, scale,
    HEADS: gl.constexpr, WIDTH: gl.constexpr, ROTATED: gl.constexpr, TAIL: gl.constexpr,
    PARTS: gl.constexpr, SPACE: gl.constexpr,
):  # fmt: skip
    """Attention in half of the channels of every token."""
    own: gl.constexpr = WIDTH // 2
    scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, own, 16])
    heads: gl.constexpr = gl.SliceLayout(1, scores)
    lines: gl.constexpr = gl.SliceLayout(1, sums)
    operand: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    none = gl.zeros([64, 64], gl.float32, scores)
    first = gl.program_id(1) * 64
    head = first + gl.arange(0, 64, heads)
    pair, number = 0, 0
    gdc_wait()
    sink = gl.load(sink_ptr + head, head < HEADS, 0.0) * LOG2_E
    for index in range(begin + gl.program_id(0), end, gl.num_programs(0)):
        token, at = index.to(gl.int64), number % 2 * SPACE + half
        out = gl.zeros([64, own], gl.float32, sums)
        high = gl.full([64], START, gl.float32, heads)
        total = own_sum(none)
        mbarrier.wait(q_full, number & 1)
        score = _score(q, keys, full, half, pair & 1, none)
        row = rows.index(at).load(gl.SliceLayout(0, scores))
        score = warpgroup_mma_wait(0, [score])
        for part in range(2, PARTS, 2):
            if half == 0:
                out, high, total = _even(
                    keys, shares, highs, odd_sums, free, ready, pair,
                    score, row, out, high, total, scale, operand,
                )  # fmt: skip
            else:
                out, high = _odd(
                    keys, shares, highs, odd_sums, free, ready, pair,
                    score, row, out, high, scale, operand,
                )  # fmt: skip
            score, row, out = _next(
                q, keys, full, free, half, pair, rows.index(at + part), row, out, none
            )  # fmt: skip
            pair += 1
        gl.thread_barrier()
        mbarrier.arrive(q_free, count=1)
        if half == 0:
            out, high, total = _even(
                keys, shares, highs, odd_sums, free, ready, pair,
                score, row, out, high, total, scale, operand,
            )  # fmt: skip
            whole = gl.convert_layout(whole_sum(total), heads) + gl.exp2(sink - high)
            factor = GROWN / whole
            highs.index(2).store(factor)
            gl.thread_barrier()
            mbarrier.arrive(ready.index(2), count=1)
        else:
            out, high = _odd(
                keys, shares, highs, odd_sums, free, ready, pair,
                score, row, out, high, scale, operand,
            )  # fmt: skip
            mbarrier.wait(ready.index(2), number & 1)
            factor = highs.index(2).load(heads)
        pair += 1
        out = warpgroup_mma_wait(0, [out])
        gl.thread_barrier()
        done = keys.index(2 + half)
        factor = gl.convert_layout(factor, lines, assert_trivial=True)
        done.store((out * factor[:, None]).to(gl.bfloat16))
        gl.thread_barrier()
        _store(
            half, done, out_ptr + token * (HEADS * WIDTH), cos_ptr + token * ROTATED,
            sin_ptr + token * ROTATED, first, HEADS, WIDTH, ROTATED, TAIL,
        )  # fmt: skip
        gl.thread_barrier()
        mbarrier.arrive(free.index(2 + half), count=1)
        number += 1  # noqa: SIM113 - the loop is compiled


@gluon.jit(do_not_specialize=["begin", "end", "scale"])
def attend_rows(
    q_ptr, key_ptr, ids_ptr, sink_ptr, out_ptr, cos_ptr, sin_ptr,
    position_ptr, start_ptr, lower_ptr, begin, end, scale,
    HEADS: gl.constexpr, WIDTH: gl.constexpr, WINDOW: gl.constexpr, RING: gl.constexpr,
    IDS: gl.constexpr, ROTATED: gl.constexpr, TAIL: gl.constexpr,
    RECENT: gl.constexpr, PARTS: gl.constexpr, SPACE: gl.constexpr,
    REGISTERS: gl.constexpr, LEFT: gl.constexpr,
):  # fmt: skip
    """Attention of 64 heads for the slice of tokens from `begin` to before `end`.

    A program takes every n-th token; PARTS is even. `key_ptr`: rows of decoded keys, of the ring,
    then of the slice, then of entries. REGISTERS of a thread of the second multiplying group,
    LEFT of one that brings keys; the first group has the others.
    """
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    cube: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    q = gl.allocate_shared_memory(gl.bfloat16, [2, 64, WIDTH // 2], swizzled)
    keys = gl.allocate_shared_memory(gl.bfloat16, [4, 64, WIDTH // 2], swizzled)
    shares = gl.allocate_shared_memory(gl.bfloat16, [2, 64, 64], swizzled)
    highs = gl.allocate_shared_memory(gl.float32, [3, 64], line)
    odd_sums = gl.allocate_shared_memory(gl.float32, [64, 2, 4], cube)
    rows = gl.allocate_shared_memory(gl.int32, [2 * SPACE, 64], line)
    full = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [4, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [3, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    q_free = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(4):
        mbarrier.init(full.index(i), count=THREADS)
        mbarrier.init(free.index(i), count=1)
    for i in gl.static_range(3):
        mbarrier.init(ready.index(i), count=1)
    mbarrier.init(q_full, count=THREADS)
    mbarrier.init(q_free, count=2)
    gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_multiply, (
                gl.constexpr(0), q, keys, shares, highs, odd_sums, rows, full, free, ready, q_full,
                q_free, sink_ptr, out_ptr, cos_ptr, sin_ptr, begin, end, scale,
                HEADS, WIDTH, ROTATED, TAIL, PARTS, SPACE,
            )),
            (_multiply, (
                gl.constexpr(1), q, keys, shares, highs, odd_sums, rows, full, free, ready, q_full,
                q_free, sink_ptr, out_ptr, cos_ptr, sin_ptr, begin, end, scale,
                HEADS, WIDTH, ROTATED, TAIL, PARTS, SPACE,
            )),
            (bring, (
                q, keys, rows, full, free, q_full, q_free, q_ptr, key_ptr, ids_ptr,
                position_ptr, start_ptr, lower_ptr, begin, end,
                HEADS, WIDTH, WINDOW, RING, IDS, RECENT, PARTS, SPACE,
            )),
        ],
        [4, 4],
        [REGISTERS, LEFT],
    )  # fmt: skip
