"""Attention of a draft block on Hopper, one launch: keys are decoded once for several queries.

A program holds the window and the block of a request in shared memory and takes some of its query
tokens, one after another: scores, softmax numerators relative to the next power of two above the
largest, sum of values. Queries do not touch each other, so how many a program takes changes no
bits. Knows nothing of the stages around it.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.arch import Record
from deepinfer.ops.draft_attention.triton import LOG2_E
from deepinfer.ops.rotation import Rotation
from deepinfer.ops.sparse_attention.triton_attend import copy_queries, turn_back
from deepinfer.ops.sparse_attention.triton_records import NOWHERE, decode, load
from deepinfer.ops.sparse_attention.triton_split import SHRUNK

_PROGRAMS = 132  # multiprocessors of an H200; a program fills one
_KEYS_COST, _QUERY_COST = 4.5, 6.6  # microseconds that a program takes, and more a query
_MOST_WINDOW, _MOST_BLOCK, _MOST_CHANNELS = 128, 16, 512
_LOG2_E = gl.constexpr(LOG2_E)
_GROWN = gl.constexpr(SHRUNK)
_START = gl.constexpr(-1e30)  # finite, so that rows without a visible key give zero


@gluon.jit
def _decode_keys(
    past, own, places, record_ptr, ring_ptr, slot_ptr, anchor_ptr, lower_ptr, ring_slot, request,
    BLOCK: gl.constexpr, WIDTH: gl.constexpr, WINDOW: gl.constexpr, RING: gl.constexpr,
    ALIGNED: gl.constexpr,
):  # fmt: skip
    """Decode the window before the anchor and the block; returns the first position, the anchor."""
    record: gl.constexpr = WIDTH + WIDTH // 32
    count: gl.constexpr = past.shape[0]
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    anchor = gl.load(anchor_ptr + request)
    first = gl.maximum(gl.maximum(gl.load(lower_ptr + request), anchor - WINDOW + 1), 0)
    ring_ptr += gl.load(slot_ptr + request) * ring_slot
    slot = gl.arange(0, count, flat)
    at = ring_ptr.to(gl.int64) - record_ptr.to(gl.int64) + (first + slot) % RING * record
    far, near = places.slice(0, count), places.slice(count, 16)
    used = (first + slot <= anchor) & (slot < WINDOW)
    far.store(gl.where(used, at // ALIGNED, NOWHERE))
    slot = gl.arange(0, 16, flat)
    near.store(gl.where(slot < BLOCK, (request * BLOCK + slot) * record // ALIGNED, NOWHERE))
    words, sizes = load(record_ptr, near, True, WIDTH, ALIGNED)
    for part in gl.static_range(count // 64):
        more, scales = load(record_ptr, far.slice(64 * part, 64), True, WIDTH, ALIGNED)
        decode(more, scales, past.slice(64 * part, 64, 0), True, WIDTH)
    decode(words, sizes, own, True, WIDTH)
    return first, anchor


@gluon.jit
def _store(
    done, out_ptr, cos_ptr, sin_ptr, token, head,
    HEADS: gl.constexpr, ROTATED: gl.constexpr, TAIL: gl.constexpr,
):  # fmt: skip
    """Store 64 heads of a token, the last TAIL channels rotated back."""
    width: gl.constexpr = done.shape[1]
    wide: gl.constexpr = min(32, width // 8)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // wide, wide], [gl.num_warps(), 1], [1, 0])
    out_ptr += token * (HEADS * width)
    line = head + gl.arange(0, 64, gl.SliceLayout(1, layout))
    column = gl.arange(0, width, gl.SliceLayout(0, layout))
    kept = (line < HEADS)[:, None] & (column < width - TAIL)[None, :]
    gl.store(out_ptr + ((line * width)[:, None] + column[None, :]), done.load(layout), kept)
    turn_back(
        done.slice(width - TAIL, TAIL, 1), out_ptr + (width - TAIL),
        cos_ptr + token * ROTATED, sin_ptr + token * ROTATED, head, HEADS, width, ROTATED,
    )  # fmt: skip


@gluon.jit(do_not_specialize=["scale"])
def _attend(
    q_ptr, record_ptr, ring_ptr, slot_ptr, anchor_ptr, lower_ptr, sink_ptr, out_ptr, cos_ptr,
    sin_ptr, scale, ring_slot,
    QUERIES: gl.constexpr, EACH: gl.constexpr, BLOCK: gl.constexpr, HEADS: gl.constexpr,
    WIDTH: gl.constexpr, WINDOW: gl.constexpr, RING: gl.constexpr, PAST: gl.constexpr,
    ROTATED: gl.constexpr, TAIL: gl.constexpr, ALIGNED: gl.constexpr,
):  # fmt: skip
    """Attention of 64 heads of EACH query tokens of a block."""
    parts: gl.constexpr = (QUERIES + EACH - 1) // EACH
    request = (gl.program_id(0) // parts).to(gl.int64)
    begin = gl.program_id(0) % parts * EACH
    end = gl.minimum(begin + EACH, QUERIES)
    head = gl.program_id(1) * 64
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    q = gl.allocate_shared_memory(gl.bfloat16, [64, WIDTH], swizzled)
    past = gl.allocate_shared_memory(gl.bfloat16, [PAST, WIDTH], swizzled)
    own = gl.allocate_shared_memory(gl.bfloat16, [16, WIDTH], swizzled)
    shares = gl.allocate_shared_memory(gl.bfloat16, [64, PAST], swizzled)
    thin: gl.constexpr = gl.NVMMASharedLayout(32, 16, 2)
    own_shares = gl.allocate_shared_memory(gl.bfloat16, [64, 16], thin)
    # The places of the records are not needed any more when there are numerators.
    places = shares._reinterpret(gl.int64, [16 * PAST], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    words: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, PAST // 2, 16])
    few: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 8, 16])
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 2], [16, WIDTH // 2, 16])
    rows: gl.constexpr = gl.SliceLayout(1, scores)
    gdc_launch_dependents()
    gdc_wait()
    copy_queries(q, q_ptr, request * QUERIES + begin, head, HEADS)
    first, anchor = _decode_keys(
        past._reinterpret(gl.int32, [PAST, WIDTH // 2], words),
        own._reinterpret(gl.int32, [16, WIDTH // 2], words), places,
        record_ptr, ring_ptr, slot_ptr, anchor_ptr, lower_ptr, ring_slot, request,
        BLOCK, WIDTH, WINDOW, RING, ALIGNED,
    )  # fmt: skip
    slot = gl.arange(0, PAST, gl.SliceLayout(0, scores))
    seen = ((first + slot <= anchor) & (slot < WINDOW))[None, :]
    mine = (gl.arange(0, 16, gl.SliceLayout(0, few)) < BLOCK)[None, :]
    line = head + gl.arange(0, 64, rows)
    sink = gl.load(sink_ptr + line, line < HEADS, 0.0) * _LOG2_E
    none, nothing = gl.zeros([64, PAST], gl.float32, scores), gl.zeros([64, 16], gl.float32, few)
    nowhere = gl.zeros([64, WIDTH], gl.float32, sums)
    for query in range(begin, end):
        token = request * QUERIES + query
        async_copy.wait_group(0)
        fence_async_shared()
        gl.thread_barrier()
        far = warpgroup_mma(q, past.permute((1, 0)), none, use_acc=False, is_async=True)
        near = warpgroup_mma(q, own.permute((1, 0)), nothing, use_acc=False, is_async=True)
        far, near = warpgroup_mma_wait(0, [far, near])
        far = gl.where(seen, far * scale, float("-inf"))
        near = gl.where(mine, near * scale, float("-inf"))
        high = gl.maximum(gl.max(far, 1), gl.convert_layout(gl.max(near, 1), rows))
        high = gl.ceil(gl.maximum(high, _START))
        far = gl.exp2(far - high[:, None])
        near = gl.exp2(near - gl.convert_layout(high, gl.SliceLayout(1, few))[:, None])
        shares.store(far.to(gl.bfloat16))
        own_shares.store(near.to(gl.bfloat16))
        total = gl.sum(far, 1) + gl.convert_layout(gl.sum(near, 1), rows) + gl.exp2(sink - high)
        fence_async_shared()
        gl.thread_barrier()
        out = warpgroup_mma(shares, past, nowhere, use_acc=False, is_async=True)
        out = warpgroup_mma(own_shares, own, out, is_async=True)
        factor = gl.convert_layout(_GROWN / total, gl.SliceLayout(1, sums))
        out = warpgroup_mma_wait(0, [out])
        q.store((out * factor[:, None]).to(gl.bfloat16))
        gl.thread_barrier()
        _store(q, out_ptr, cos_ptr, sin_ptr, token, head, HEADS, ROTATED, TAIL)
        if EACH > 1:  # noqa: SIM102 - the outer test is a constant
            if query + 1 < end:
                gl.thread_barrier()
                copy_queries(q, q_ptr, token + 1, head, HEADS)


def queries_of(requests: int, queries: int, blocks: int = 1) -> int:
    """Query tokens that a program takes, so that the device is done soonest.

    Args:
        requests: blocks of drafts.
        queries: tokens of each.
        blocks: of 64 heads.
    """

    def cost(each: int) -> float:
        turns = -(-requests * -(-queries // each) * blocks // _PROGRAMS)
        return turns * (_KEYS_COST + _QUERY_COST * each)

    return min(range(1, queries + 1), key=cost)


def draft_attention(
    q: Tensor,
    records: Tensor,
    ring: Tensor,
    slots: Tensor,
    anchors: Tensor,
    lower: Tensor,
    sink: Tensor,
    by: Rotation,
    *,
    window: int,
    scale: float,
    record: Record,
) -> Tensor:
    """As the reference, for bf16 queries and FP8 records.

    Raises:
        ValueError: the records have another format.
    """
    if record.format != "fp8_ue8m0_32":
        raise ValueError(f"draft_attention: the kernel takes FP8 records, not {record.format}")
    requests, queries, heads, _ = q.shape
    return shared(
        q, records, ring, slots, anchors, lower, sink, by, window=window, scale=scale,
        each=queries_of(requests, queries, triton.cdiv(heads, 64)),
    )  # fmt: skip


def shared(
    q: Tensor,
    records: Tensor,
    ring: Tensor,
    slots: Tensor,
    anchors: Tensor,
    lower: Tensor,
    sink: Tensor,
    by: Rotation,
    *,
    window: int,
    scale: float,
    each: int,
) -> Tensor:
    """`draft_attention` with programs of `each` query tokens."""
    requests, queries, heads, width = q.shape
    assert ring.stride(1) == records.shape[-1], "ring rows lie side by side"
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if not requests:
        return out
    records, rotated, apart = records.contiguous(), by.cos.shape[1], ring.stride(0)
    starts = records.data_ptr(), ring.data_ptr()
    _attend[(requests * triton.cdiv(queries, each), triton.cdiv(heads, 64))](
        q.contiguous(), records, ring, slots, anchors, lower, sink, out, by.cos, by.sin,
        scale * LOG2_E * SHRUNK, apart,
        queries, each, records.shape[1], heads, width, window, ring.shape[1],
        max(64, triton.next_power_of_2(window)), rotated,
        max(64, triton.next_power_of_2(2 * rotated)),
        math.gcd(16, apart, records.shape[-1], *starts),
        num_warps=8, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
    return out


def refuses(
    *,
    arch: str,
    quantised: bool,
    head_dim: int,
    window: int = _MOST_WINDOW,
    draft_block: int = 0,
    **_facts: object,
) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    if arch != "sm90":
        return f"written for sm90, not {arch}"
    if not quantised:
        return "takes quantised records only"
    if head_dim & (head_dim - 1) or not 64 <= head_dim <= _MOST_CHANNELS:
        return f"head_dim {head_dim} is no power of two from 64 to {_MOST_CHANNELS}"
    if window > _MOST_WINDOW or draft_block > _MOST_BLOCK:
        return (
            f"window {window} and block {draft_block}; holds at most {_MOST_WINDOW} and "
            f"{_MOST_BLOCK} keys"
        )
    return None
