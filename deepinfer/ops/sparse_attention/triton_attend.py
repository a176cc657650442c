"""Sparse attention in one launch, for many tokens: keys are decoded once and multiplied twice.

A program takes one token after another, with its queries in shared memory. A part of 64 slots is
decoded into one of two buffers while the part before is multiplied with the queries; its softmax
numerators then multiply the same buffer. Numerators are relative to a running power of two, so that
rescaling is exact; sums run in list order and none is split. Bits are those of triton_split.py.
Knows nothing of how entries were selected.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.sparse_attention.triton_records import NOWHERE, decode, find, load

LOG2_E = gl.constexpr(1 / math.log(2))
GROWN = gl.constexpr(2.0**16)  # keys are held smaller by this factor
START = gl.constexpr(-1e30)  # finite, so that rows without a visible key give zero


@gluon.constexpr_function
def _halves():
    """Layout [64, 2]: a thread has the largest scores of its rows in both halves of the slots."""
    lanes = [[0, 0], [0, 0], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(
        [[8, 0], [0, 1]], lanes, [[16, 0], [32, 0], [0, 0]], [], [64, 2]
    )


@gluon.jit
def own_sum(share):
    """Sums over the columns that a thread has of [64, 64] in the product's layout: [64, 2, 4].

    Two numbers at a time, so that the order depends on no layout.
    """
    pairs = gl.sum(share.reshape([64, 2, 2, 2, 4, 2]), 5)
    return gl.sum(gl.sum(pairs, 3), 2)


@gluon.jit
def whole_sum(total):
    """Sum of [64, 2, 4], in the same manner: [64]."""
    total = gl.sum(total.reshape([64, 2, 2, 2]), 3)
    return gl.sum(gl.sum(total, 2), 1)


@gluon.jit
def copy_queries(q, q_ptr, token, first, HEADS: gl.constexpr):
    """Start to copy 64 heads of a token, zeros behind the last."""
    width: gl.constexpr = q.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    head = first + gl.arange(0, 64, gl.SliceLayout(1, layout))
    column = gl.arange(0, width, gl.SliceLayout(0, layout))
    q_ptr += token * (HEADS * width)
    at = q_ptr + ((head * width)[:, None] + column[None, :])
    async_copy.async_copy_global_to_shared(q, at, mask=(head < HEADS)[:, None])
    async_copy.commit_group()


@gluon.jit
def unknown_zero():
    """0, of which the compiler knows nothing: else it computes addresses of all products before
    the loop and keeps them, in local memory for want of registers."""
    return gl.inline_asm_elementwise("mov.b32 $0, 0;", "=r", [], gl.int32, False, 1)


@gluon.jit
def weigh(score, used, scale, shares, peaks, high, total):
    """Store the numerators of 64 slots, relative to the highest score so far, and add their sum.

    `used` says which slots are seen. Returns the power of two by which earlier sums shrink, the
    highest score and the sums.
    """
    scores: gl.constexpr = score.type.layout
    score = gl.where(used[None, :], score * scale, float("-inf"))
    # Each half of the slots belongs to other warps, which exchange their maxima.
    peaks.store(gl.max(score.reshape([64, 2, 32]), 2))
    peak = gl.convert_layout(
        gl.max(peaks.load(_halves()), 1), gl.SliceLayout(1, scores), assert_trivial=True
    )
    # Relative to the part's own maximum first, as in the other kernel, then to the running one.
    own_high = gl.ceil(gl.maximum(peak, START))
    share = gl.exp2(score - own_high[:, None])
    before = high
    high = gl.maximum(high, own_high)
    shrink, step = gl.exp2(before - high), gl.exp2(own_high - high)
    rounded = share.to(gl.bfloat16).to(gl.float32)
    shares.store((rounded * step[:, None]).to(gl.bfloat16))
    fence_async_shared()
    own = own_sum(share)
    lines: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, own.type.layout))
    own *= gl.convert_layout(step, lines, assert_trivial=True)[:, None, None]
    total = total * gl.convert_layout(shrink, lines, assert_trivial=True)[:, None, None] + own
    return shrink, high, total


@gluon.jit
def _part(
    q, keys, packed, shares, peaks, record_ptr, here, there, words, sizes,
    out, high, total, buffer, scale,
    NEXT: gl.constexpr, AFTER: gl.constexpr, ALIGNED: gl.constexpr, scores: gl.constexpr,
):  # fmt: skip
    """Start to add 64 slots, at places `here`, to `out`; meanwhile decode the next part.

    `words` and `sizes` are that part as stored; those of the part after it, at places `there`, are
    returned. NEXT, AFTER: whether these are window records.
    """
    width: gl.constexpr = q.shape[1]
    none = gl.zeros([64, 64], gl.float32, scores)
    zero = unknown_zero()
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q = q._reinterpret(gl.bfloat16, [1, 64, width], swizzled).index(zero)
    key = keys.index(buffer + zero)
    score = warpgroup_mma(q, key.permute((1, 0)), none, use_acc=False, is_async=True)
    decode(words, sizes, packed.index(1 - buffer), NEXT, width)
    fence_async_shared()
    words, sizes = load(record_ptr, there, AFTER, width, ALIGNED)
    used = here.load(gl.SliceLayout(0, scores)) != NOWHERE
    score = warpgroup_mma_wait(0, [score])
    shrink, high, total = weigh(score, used, scale, shares, peaks, high, total)
    shrink = gl.convert_layout(shrink, gl.SliceLayout(1, out.type.layout), assert_trivial=True)
    out = warpgroup_mma(shares, key, out * shrink[:, None], is_async=True)
    return words, sizes, out, high, total


@gluon.jit
def finish(
    out, high, total, done, sink, out_ptr, cos_ptr, sin_ptr, token, first,
    HEADS: gl.constexpr, ROTATED: gl.constexpr, TAIL: gl.constexpr,
):  # fmt: skip
    """Divide, rotate back the last TAIL channels and store, through the buffer `done`."""
    warps: gl.constexpr = gl.num_warps()
    width: gl.constexpr = out.shape[1]
    rows: gl.constexpr = high.type.layout
    total = gl.convert_layout(whole_sum(total), rows) + gl.exp2(sink - high)
    lines: gl.constexpr = gl.SliceLayout(1, out.type.layout)
    factor = gl.convert_layout(GROWN / total, lines, assert_trivial=True)
    done.store((out * factor[:, None]).to(gl.bfloat16))
    out_ptr += token * (HEADS * width)
    wide: gl.constexpr = min(32, width // 8)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // wide, wide], [warps, 1], [1, 0])
    last: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    pairs: gl.constexpr = TAIL // 2
    # What takes longest first.
    value = done.slice(width - TAIL, TAIL, 1).load(last).to(gl.float32)
    even, odd = value.reshape([64, pairs, 2]).split()
    pair = gl.arange(0, pairs, gl.SliceLayout(0, even.type.layout)) - (pairs - ROTATED)
    cos = gl.load(cos_ptr + token * ROTATED + pair, pair >= 0, 1.0)[None, :]
    sin = gl.load(sin_ptr + token * ROTATED + pair, pair >= 0, 0.0)[None, :]
    turns = (pair >= 0)[None, :]
    head = first + gl.arange(0, 64, gl.SliceLayout(1, layout))
    column = gl.arange(0, width, gl.SliceLayout(0, layout))
    kept = (head < HEADS)[:, None] & (column < width - TAIL)[None, :]
    gl.store(out_ptr + ((head * width)[:, None] + column[None, :]), done.load(layout), kept)
    value = gl.join(
        gl.where(turns, even * cos + odd * sin, even), gl.where(turns, odd * cos - even * sin, odd)
    ).to(gl.bfloat16)
    value = gl.convert_layout(value.reshape([64, TAIL]), last)
    head = first + gl.arange(0, 64, gl.SliceLayout(1, last))
    column = width - TAIL + gl.arange(0, TAIL, gl.SliceLayout(0, last))
    at = out_ptr + ((head * width)[:, None] + column[None, :])
    gl.store(at, value, (head < HEADS)[:, None])


@gluon.jit
def turn_back(
    values, out_ptr, cos_ptr, sin_ptr, first,
    HEADS: gl.constexpr, WIDTH: gl.constexpr, ROTATED: gl.constexpr,
):  # fmt: skip
    """Store channels of 64 heads, the last ROTATED pairs of neighbours rotated backwards."""
    pairs: gl.constexpr = values.shape[1] // 2
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    value = values.load(layout).to(gl.float32)
    even, odd = value.reshape([64, pairs, 2]).split()
    pair = gl.arange(0, pairs, gl.SliceLayout(0, even.type.layout)) - (pairs - ROTATED)
    cos = gl.load(cos_ptr + pair, pair >= 0, 1.0)[None, :]
    sin = gl.load(sin_ptr + pair, pair >= 0, 0.0)[None, :]
    turns = (pair >= 0)[None, :]
    value = gl.join(
        gl.where(turns, even * cos + odd * sin, even), gl.where(turns, odd * cos - even * sin, odd)
    ).to(gl.bfloat16)
    value = gl.convert_layout(value.reshape([64, 2 * pairs]), layout)
    head = first + gl.arange(0, 64, gl.SliceLayout(1, layout))
    column = gl.arange(0, 2 * pairs, gl.SliceLayout(0, layout))
    at = out_ptr + ((head * WIDTH)[:, None] + column[None, :])
    gl.store(at, value, (head < HEADS)[:, None])


@gluon.jit(do_not_specialize=["begin", "end", "scale", "table_width"])
def attend(
    q_ptr, record_ptr, ring_ptr, ids_ptr, latent_ptr, sink_ptr, out_ptr, cos_ptr, sin_ptr,
    position_ptr, row_ptr, start_ptr, lower_ptr, slot_ptr, table_ptr,
    begin, end, scale, ring_slot, page_size, table_width,
    HEADS: gl.constexpr, WIDTH: gl.constexpr, WINDOW: gl.constexpr, RING: gl.constexpr,
    IDS: gl.constexpr, ENTRIES: gl.constexpr, ROTATED: gl.constexpr, TAIL: gl.constexpr,
    RECENT: gl.constexpr, PARTS: gl.constexpr, SPACE: gl.constexpr, ALIGNED: gl.constexpr,
):  # fmt: skip
    """Attention of 64 heads for tokens from `begin` to before `end`; a program takes every n-th.

    A list has at least two parts. The parts of all tokens of a program are one stream: the first
    two of the next token are decoded and loaded while the last two of this one are multiplied.
    """
    first = gl.program_id(1) * 64
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q = gl.allocate_shared_memory(gl.bfloat16, [64, WIDTH], swizzled)
    keys = gl.allocate_shared_memory(gl.bfloat16, [2, 64, WIDTH], swizzled)
    packed = keys._reinterpret(gl.int32, [2, 64, WIDTH // 2], gl.NVMMASharedLayout(128, 32, 2))
    shares = gl.allocate_shared_memory(gl.bfloat16, [64, 64], swizzled)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    peaks = gl.allocate_shared_memory(gl.float32, [64, 2], plain)
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    places = gl.allocate_shared_memory(gl.int64, [2 * SPACE, 64], line)
    lists = places._reinterpret(gl.int64, [2, SPACE * 64], line)
    scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 32, 16])
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, WIDTH // 2, 16])
    recent = (
        record_ptr, ring_ptr, ring_slot, position_ptr, row_ptr, start_ptr, lower_ptr, slot_ptr,
    )  # fmt: skip
    selected = (ids_ptr, latent_ptr, page_size, table_ptr, table_width)
    gdc_launch_dependents()
    gdc_wait()

    head = first + gl.arange(0, 64, gl.SliceLayout(1, scores))
    sink = gl.load(sink_ptr + head, head < HEADS, 0.0) * LOG2_E
    token = (begin + gl.program_id(0)).to(gl.int64)
    find(
        lists.index(0), recent, selected, token, True,
        WIDTH, WINDOW, RING, IDS, ENTRIES, RECENT, ALIGNED,
    )  # fmt: skip
    copy_queries(q, q_ptr, token, first, HEADS)
    words, sizes = load(record_ptr, places.index(0), True, WIDTH, ALIGNED)
    decode(words, sizes, packed.index(0), True, WIDTH)
    words, sizes = load(record_ptr, places.index(1), RECENT > 1, WIDTH, ALIGNED)
    turn = 0
    for number in range(begin + gl.program_id(0), end, gl.num_programs(0)):
        after = number + gl.num_programs(0)
        token = number.to(gl.int64)
        follower = gl.minimum(after, end - 1).to(gl.int64)
        ours, theirs = turn % 2 * SPACE, (1 - turn % 2) * SPACE
        start = turn * PARTS
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        out = gl.zeros([64, WIDTH], gl.float32, sums)
        high = gl.full([64], START, gl.float32, gl.SliceLayout(1, scores))
        total = own_sum(gl.zeros([64, 64], gl.float32, scores))
        if PARTS == 2:
            find(
                lists.index(1 - turn % 2), recent, selected, follower, after < end,
                WIDTH, WINDOW, RING, IDS, ENTRIES, RECENT, ALIGNED,
            )  # fmt: skip
        for part in gl.static_range(RECENT):
            words, sizes, out, high, total = _part(
                q, keys, packed, shares, peaks, record_ptr, places.index(ours + part),
                places.index(ours + part + 2 if part + 2 < PARTS else theirs + part + 2 - PARTS),
                words, sizes, out, high, total, (start + part) % 2, scale,
                (part + 1) % PARTS < RECENT, (part + 2) % PARTS < RECENT, ALIGNED, scores,
            )  # fmt: skip
            if part == 0 and PARTS > 2:
                find(
                    lists.index(1 - turn % 2), recent, selected, follower, after < end,
                    WIDTH, WINDOW, RING, IDS, ENTRIES, RECENT, ALIGNED,
                )  # fmt: skip
            if part + 1 == PARTS:
                copy_queries(q, q_ptr, follower, first, HEADS)
            out = warpgroup_mma_wait(0, [out])
            gl.thread_barrier()  # no product reads this part any more
        if PARTS - 2 > RECENT:
            for part in range(RECENT, PARTS - 2):
                words, sizes, out, high, total = _part(
                    q, keys, packed, shares, peaks, record_ptr, places.index(ours + part),
                    places.index(ours + part + 2),
                    words, sizes, out, high, total, (start + part) % 2, scale,
                    False, False, ALIGNED, scores,
                )  # fmt: skip
                out = warpgroup_mma_wait(0, [out])
                gl.thread_barrier()
        for part in gl.static_range(max(RECENT, PARTS - 2), PARTS):
            words, sizes, out, high, total = _part(
                q, keys, packed, shares, peaks, record_ptr, places.index(ours + part),
                places.index(theirs + part + 2 - PARTS),
                words, sizes, out, high, total, (start + part) % 2, scale,
                (part + 1) % PARTS < RECENT, (part + 2) % PARTS < RECENT, ALIGNED, scores,
            )  # fmt: skip
            if part + 1 == PARTS:
                copy_queries(q, q_ptr, follower, first, HEADS)
            out = warpgroup_mma_wait(0, [out])
            gl.thread_barrier()
        finish(
            out, high, total, keys.index((start + PARTS - 1) % 2),
            sink, out_ptr, cos_ptr, sin_ptr, token, first, HEADS, ROTATED, TAIL,
        )  # fmt: skip
        turn += 1  # noqa: SIM113 - the loop is compiled
    async_copy.wait_group(0)  # a program must not end before its copies
