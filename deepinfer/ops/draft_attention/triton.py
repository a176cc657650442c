"""Attention of a draft block in Triton, two launches: weights of the keys, then the sum of values.

A program of the first launch takes one query token and 64 slots of its key list; it writes softmax
numerators in bf16, relative to a power of two of its own. A program of the second takes some
channels of all slots; powers of two rescale numerators exactly, and every sum runs in list order,
so the tiles of the second launch change no bits. Knows nothing of the stages around it.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.arch import Record
from deepinfer.ops.portable import refuses_arch
from deepinfer.ops.rotation import Rotation
from deepinfer.ops.triton_rows import turned

SLOTS = 64  # slots of one numerator group; a row's bits depend on it
_HEADS = 64  # most heads a program; fewer are padded
LOG2_E = 1 / math.log(2)
_LOG2_E: tl.constexpr = tl.constexpr(LOG2_E)
_START: tl.constexpr = tl.constexpr(-1e30)  # finite, so that a group without a key gives zero


class Tiles(NamedTuple):
    """Shapes of the programs; none of them changes bits.

    step: channels that the first launch multiplies at a time; stages: of its loop. channels: of a
    program of the second launch; sum_stages: of its loop.
    """

    step: int = 128
    stages: int = 2
    channels: int = 128
    sum_stages: int = 3


@triton.jit
def _find(
    record_ptr, ring_ptr, slot_ptr, anchor_ptr, lower_ptr, ring_slot, request, slot,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Addresses of the records in `slot`s of a request's key list, and which of them are used."""
    record: tl.constexpr = WIDTH + WIDTH // 32
    anchor = tl.load(anchor_ptr + request)
    first = tl.maximum(tl.maximum(tl.load(lower_ptr + request), anchor - WINDOW + 1), 0)
    ring_ptr += tl.load(slot_ptr + request) * ring_slot
    past, own = slot < WINDOW, slot - WINDOW
    far = ring_ptr + (first + slot) % RING * record
    near = record_ptr + (request * BLOCK + own) * record
    return tl.where(past, far, near), tl.where(past, first + slot <= anchor, own < BLOCK)


@triton.jit
def _keys(at, used, low, STEP: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """Channels low... of FP8 records at addresses [slots], decoded; zero where not used."""
    slots: tl.constexpr = at.shape[0]
    here = used[:, None]
    code = tl.load(at[:, None] + low + tl.arange(0, STEP)[None, :], here, 0)
    group = WIDTH + low // 32 + tl.arange(0, STEP // 32)[None, :]
    byte = tl.load(at[:, None] + group, here, 127)
    size = (byte.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    value = tl.reshape(value, (slots, STEP // 32, 32)) * size[:, :, None]
    return tl.reshape(value.to(KIND), (slots, STEP))


@triton.jit(do_not_specialize=["scale"])
def _weigh(
    q_ptr, record_ptr, ring_ptr, slot_ptr, anchor_ptr, lower_ptr, share_ptr, high_ptr, total_ptr,
    scale, ring_slot,
    QUERIES: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr, RING: tl.constexpr, SLOTS: tl.constexpr, PARTS: tl.constexpr,
    STEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Numerators of SLOTS slots: exp2(score - high), high the next integer above the largest."""
    gdc_wait()
    gdc_launch_dependents()
    token, part = (tl.program_id(0) // PARTS).to(tl.int64), tl.program_id(0) % PARTS
    head, slot = tl.program_id(1) * PADDED + tl.arange(0, PADDED), tl.arange(0, SLOTS)
    there = head < HEADS
    at, used = _find(
        record_ptr, ring_ptr, slot_ptr, anchor_ptr, lower_ptr, ring_slot,
        token // QUERIES, part * SLOTS + slot, BLOCK, WIDTH, WINDOW, RING,
    )  # fmt: skip
    q_ptr += (token * HEADS + head)[:, None] * WIDTH + tl.arange(0, STEP)[None, :]
    score = tl.zeros([PADDED, SLOTS], tl.float32)
    for low in tl.range(0, WIDTH, STEP, num_stages=STAGES):
        q = tl.load(q_ptr + low, there[:, None], 0.0)
        score = tl.dot(q, tl.trans(_keys(at, used, low, STEP, WIDTH, q.dtype)), score)
    score = tl.where(used[None, :], score * scale, float("-inf"))
    high = tl.ceil(tl.maximum(tl.max(score, 1), _START))
    share = tl.exp2(score - high[:, None])
    kept = (token * PARTS + part) * HEADS + head
    tl.store(high_ptr + kept, high, there)
    tl.store(total_ptr + kept, tl.sum(share, 1), there)
    column = (token * HEADS + head)[:, None] * (PARTS * SLOTS) + part * SLOTS + slot[None, :]
    tl.store(share_ptr + column, share.to(share_ptr.dtype.element_ty), there[:, None])


@triton.jit
def _sum(
    share_ptr, high_ptr, total_ptr, record_ptr, ring_ptr, slot_ptr, anchor_ptr, lower_ptr,
    sink_ptr, out_ptr, cos_ptr, sin_ptr, ring_slot,
    QUERIES: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
    WINDOW: tl.constexpr, RING: tl.constexpr, SLOTS: tl.constexpr, PARTS: tl.constexpr,
    ROTATED: tl.constexpr, CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """CHANNELS channels of the attention of one token, rotated back."""
    gdc_wait()
    gdc_launch_dependents()
    token = (tl.program_id(0) // (WIDTH // CHANNELS)).to(tl.int64)
    low = tl.program_id(0) % (WIDTH // CHANNELS) * CHANNELS
    head, slot = tl.program_id(1) * PADDED + tl.arange(0, PADDED), tl.arange(0, SLOTS)
    there = head < HEADS
    high_ptr += token * PARTS * HEADS + head
    total_ptr += token * PARTS * HEADS + head
    share_ptr += (token * HEADS + head)[:, None] * (PARTS * SLOTS) + slot[None, :]
    high = tl.full([PADDED], _START, tl.float32)
    for part in tl.static_range(PARTS):
        high = tl.maximum(high, tl.load(high_ptr + part * HEADS, there, _START))
    total = tl.exp2(tl.load(sink_ptr + head, there, 0.0) * _LOG2_E - high)
    out = tl.zeros([PADDED, CHANNELS], tl.float32)
    for part in tl.range(0, PARTS, num_stages=STAGES):
        relative = tl.exp2(tl.load(high_ptr + part * HEADS, there, _START) - high)
        total += tl.load(total_ptr + part * HEADS, there, 0.0) * relative
        share = tl.load(share_ptr + part * SLOTS, there[:, None], 0.0)
        share = (share.to(tl.float32) * relative[:, None]).to(share.dtype)
        at, used = _find(
            record_ptr, ring_ptr, slot_ptr, anchor_ptr, lower_ptr, ring_slot,
            token // QUERIES, part * SLOTS + slot, BLOCK, WIDTH, WINDOW, RING,
        )  # fmt: skip
        out = tl.dot(share, _keys(at, used, low, CHANNELS, WIDTH, share.dtype), out)
    out = (out / total[:, None]).to(out_ptr.dtype.element_ty).to(tl.float32)
    even, odd = tl.split(tl.reshape(out, (PADDED, CHANNELS // 2, 2)))
    pair = (low // 2 + tl.arange(0, CHANNELS // 2))[None, :]
    # Rotating (odd, even) forwards is rotating (even, odd) backwards with the places changed.
    odd, even = turned(
        odd, even, cos_ptr + token * ROTATED, sin_ptr + token * ROTATED, pair, WIDTH // 2 - ROTATED
    )
    at = (token * HEADS + head)[:, None] * WIDTH + low + tl.arange(0, CHANNELS)[None, :]
    out = tl.interleave(even, odd).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, out, there[:, None])


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
    return tiled(
        q, records, ring, slots, anchors, lower, sink, by,
        window=window, scale=scale, tiles=Tiles(),
    )  # fmt: skip


def tiled(
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
    tiles: Tiles,
) -> Tensor:
    """`draft_attention` with programs of given shapes."""
    requests, queries, heads, width = q.shape
    assert ring.stride(1) == records.shape[-1], "ring rows lie side by side"
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if not requests:
        return out
    block = records.shape[1]
    tokens, parts = requests * queries, triton.cdiv(window + block, SLOTS)
    padded = min(_HEADS, max(16, triton.next_power_of_2(heads)))
    share = q.new_empty((tokens, heads, parts * SLOTS))
    high, total = torch.empty((2, tokens, parts, heads), dtype=torch.float32, device=q.device)
    stored = records.contiguous(), ring, slots, anchors, lower
    sizes = queries, block, heads, padded, width, window, ring.shape[1], SLOTS, parts
    channels, blocks = min(tiles.channels, width), triton.cdiv(heads, padded)
    _weigh[(tokens * parts, blocks)](
        q.contiguous(), *stored, share, high, total, scale * LOG2_E, ring.stride(0),
        *sizes, min(tiles.step, width), tiles.stages,
        num_warps=4, launch_pdl=True,
    )  # fmt: skip
    _sum[(tokens * (width // channels), blocks)](
        share, high, total, *stored, sink, out, by.cos, by.sin, ring.stride(0),
        *sizes, by.cos.shape[1], channels, tiles.sum_stages,
        num_warps=4, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
    return out


def pack(weights: Tensor) -> Tensor:
    """The sinks as they are."""
    return weights


def refuses(*, arch: str, quantised: bool, head_dim: int, **_facts: object) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    if why_not := refuses_arch(arch):
        return why_not
    if not quantised:
        return "takes quantised records only"
    if head_dim & (head_dim - 1) or head_dim < 64:
        return f"head_dim {head_dim} is no power of two from 64 on"
    return None
