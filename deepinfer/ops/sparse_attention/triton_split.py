"""Sparse attention in two launches, for few tokens: weights of the keys, then their weighted sum.

A program of the first launch takes one token and 64 slots of its key list; it writes the softmax
numerators in bf16, with their sums and the power of two that they are relative to. A program of the
second takes one token and some channels of all its slots, so no partial outputs are ever stored.
A power of two rescales what was added before, and every sum runs in list order: tiles of the second
launch change no bits, and the bits are those of triton_attend.py. Records are decoded where they
lie. Knows nothing of how entries were selected.
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

from deepinfer.arch import Records
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.rotation import Rotation
from deepinfer.ops.sparse_attention.scratch import SLOTS, TOKENS
from deepinfer.ops.triton_fp4 import fp4_pairs
from deepinfer.ops.triton_rows import turned

_MOST_CHANNELS = 512
_HEADS = 64  # a program, padded: the matrix unit takes 64 rows
LOG2_E = 1 / math.log(2)
_LOG2_E: tl.constexpr = tl.constexpr(LOG2_E)
SHRUNK = 2.0**16  # keys are held smaller by this factor: FP4 scales times 2^110 fit bf16
_GROWN: tl.constexpr = tl.constexpr(SHRUNK)
_FP4_RAISE: tl.constexpr = tl.constexpr(2.0**110)
_NOWHERE: tl.constexpr = tl.constexpr(-(1 << 62))
_START: tl.constexpr = tl.constexpr(-1e30)  # finite, so that rows without a visible key give zero


class Tiles(NamedTuple):
    """Shapes of the programs; none of them changes bits.

    step: channels that the first launch multiplies at a time; stages: of its loop. channels: of a
    program of the second launch; sum_warps, sum_stages: its warps and the stages of its loop.
    """

    step: int
    stages: int
    channels: int
    sum_warps: int
    sum_stages: int


def choose(tokens: int) -> Tiles:
    """Many narrow programs for few tokens, wide ones for many."""
    return Tiles(128, 3, 64, 4, 3) if tokens <= 32 else Tiles(128, 2, 128, 4, 2)


@triton.jit
def fp8_keys(at, used, low, STEP: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """Channels low... of FP8 records [slots, STEP], divided by 2^16; zero where not used."""
    slots: tl.constexpr = at.shape[0]
    here = used[:, None]
    code = tl.load(at[:, None] + low + tl.arange(0, STEP)[None, :], here, 0)
    group = WIDTH + low // 32 + tl.arange(0, STEP // 32)[None, :]
    byte = tl.load(at[:, None] + group, here, 127)
    # A scale of less than 2^-110 counts as nothing, as its value would.
    size = ((tl.maximum(byte.to(tl.int32), 16) - 16) << 23).to(tl.float32, bitcast=True)
    value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    value = tl.reshape(value, (slots, STEP // 32, 32)) * size[:, :, None]
    return tl.reshape(value.to(KIND), (slots, STEP))


@triton.jit
def fp4_keys(at, used, low, STEP: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """Channels low... of FP4 entries [slots, STEP], one E4M3 scale for 16 channels, over 2^16."""
    slots: tl.constexpr = at.shape[0]
    half: tl.constexpr = STEP // 2
    here = used[:, None]
    code = tl.load(at[:, None] + low // 2 + tl.arange(0, half)[None, :], here, 0)
    group = WIDTH // 2 + low // 16 + tl.arange(0, STEP // 16)[None, :]
    size = tl.load(at[:, None] + group, here, 0).to(tl.float8e4nv, bitcast=True)
    size = (size.to(tl.float32) * _FP4_RAISE).to(KIND)[:, :, None]
    even, odd = fp4_pairs(tl.reshape(code, (slots, STEP // 16, 8)), size)
    return tl.interleave(tl.reshape(even, (slots, half)), tl.reshape(odd, (slots, half)))


@triton.jit
def _recent(
    record_ptr, ring_ptr, position_ptr, row_ptr, start_ptr, lower_ptr, slot_ptr, ring_slot,
    token, slot,
    WIDTH: tl.constexpr, WINDOW: tl.constexpr, RING: tl.constexpr,
):  # fmt: skip
    """Addresses of the window records in `slot`s of the key list, and which of them are used."""
    position, start = tl.load(position_ptr + token), tl.load(start_ptr + token)
    first = tl.maximum(tl.maximum(tl.load(lower_ptr + token), position - WINDOW + 1), 0)
    ring_ptr += tl.load(slot_ptr + tl.load(row_ptr + token)) * ring_slot
    wanted = first + slot
    record: tl.constexpr = WIDTH + WIDTH // 32
    near = record_ptr + (token - position + wanted) * record
    far = ring_ptr + wanted % RING * record
    return tl.where(wanted >= start, near, far), (wanted <= position) & (slot < WINDOW)


@triton.jit
def _selected(
    ids_ptr, latent_ptr, row_ptr, table_ptr, page_size, table_width, token, slot,
    WIDTH: tl.constexpr, IDS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """Addresses of the entries in `slot`s of the selection, and which of them are used."""
    chosen = tl.load(ids_ptr + token * IDS + slot, slot < IDS, -1)
    used = chosen >= 0
    table_ptr += tl.load(row_ptr + token) * table_width
    page = tl.load(table_ptr + chosen // ENTRIES, used, 0)
    return latent_ptr + page * page_size + chosen % ENTRIES * (WIDTH // 2 + WIDTH // 16), used


@triton.jit
def _eight_sums(share, PADDED: tl.constexpr):
    """[heads, 8]: sums of 64 columns, two numbers at a time, in the order of the other kernel."""
    pairs = tl.sum(tl.reshape(share, (PADDED, 2, 2, 2, 4, 2)), 5)
    return tl.reshape(tl.sum(tl.sum(pairs, 3), 2), (PADDED, 8))


@triton.jit(do_not_specialize=["first", "scale", "table_width"])
def _weigh(
    q_ptr, record_ptr, ring_ptr, ids_ptr, latent_ptr, share_ptr, high_ptr, total_ptr, place_ptr,
    position_ptr, row_ptr, start_ptr, lower_ptr, slot_ptr, table_ptr,
    first, scale, ring_slot, page_size, table_width,
    HEADS: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr,
    RING: tl.constexpr, IDS: tl.constexpr, ENTRIES: tl.constexpr, SLOTS: tl.constexpr,
    RECENT: tl.constexpr, PARTS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Numerators of SLOTS slots: exp2(score - high), high the next integer above the largest.

    Also notes where their records lie, in bytes behind `record_ptr`; _NOWHERE if unseen. Results
    lie in scratch memory that starts with token `first`.
    """
    gdc_wait()
    gdc_launch_dependents()
    row, part = (tl.program_id(0) // PARTS).to(tl.int64), tl.program_id(0) % PARTS
    token = first + row
    head = tl.program_id(1) * PADDED + tl.arange(0, PADDED)
    there, slot = head < HEADS, tl.arange(0, SLOTS)
    q_ptr += (token * HEADS + head)[:, None] * WIDTH + tl.arange(0, STEP)[None, :]
    score = tl.zeros([PADDED, SLOTS], tl.float32)
    if part < RECENT:
        at, used = _recent(
            record_ptr, ring_ptr, position_ptr, row_ptr, start_ptr, lower_ptr, slot_ptr, ring_slot,
            token, part * SLOTS + slot, WIDTH, WINDOW, RING,
        )  # fmt: skip
        for low in tl.range(0, WIDTH, STEP, num_stages=STAGES):
            q = tl.load(q_ptr + low, there[:, None], 0.0)
            key = fp8_keys(at, used, low, STEP, WIDTH, q.dtype)
            score = tl.dot(q, tl.trans(key), score)
    else:
        at, used = _selected(
            ids_ptr, latent_ptr, row_ptr, table_ptr, page_size, table_width,
            token, (part - RECENT) * SLOTS + slot, WIDTH, IDS, ENTRIES,
        )  # fmt: skip
        for low in tl.range(0, WIDTH, STEP, num_stages=STAGES):
            q = tl.load(q_ptr + low, there[:, None], 0.0)
            key = fp4_keys(at, used, low, STEP, WIDTH, q.dtype)
            score = tl.dot(q, tl.trans(key), score)
    score = tl.where(used[None, :], score * scale, float("-inf"))
    high = tl.ceil(tl.maximum(tl.max(score, 1), _START))
    share = tl.exp2(score - high[:, None])
    kept = (row * PARTS + part) * HEADS + head
    tl.store(high_ptr + kept, high, there)
    eight = kept[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(total_ptr + eight, _eight_sums(share, PADDED), there[:, None])
    column = (row * HEADS + head)[:, None] * (PARTS * SLOTS) + part * SLOTS + slot[None, :]
    tl.store(share_ptr + column, share.to(share_ptr.dtype.element_ty), there[:, None])
    place = tl.where(used, at.to(tl.int64) - record_ptr.to(tl.int64), _NOWHERE)
    tl.store(place_ptr + (row * PARTS + part) * SLOTS + slot, place)


@triton.jit
def _rescaled(
    share_ptr, high_ptr, total_ptr, part, there, high, total, out,
    HEADS: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    """Numerators of a part and all sums so far, made relative to the new highest score."""
    share = tl.load(share_ptr + part * SLOTS, there[:, None], 0.0)
    own = tl.load(high_ptr + part * HEADS, there, _START)
    before = high
    high = tl.maximum(high, own)
    shrink, step = tl.exp2(before - high), tl.exp2(own - high)
    share = (share.to(tl.float32) * step[:, None]).to(share.dtype)
    sums = tl.load(total_ptr + part * (HEADS * 8), there[:, None], 0.0)
    total = total * shrink[:, None] + sums * step[:, None]
    return share, high, total, out * shrink[:, None]


@triton.jit
def _records(record_ptr, place_ptr, part, SLOTS: tl.constexpr, ALIGNED: tl.constexpr):
    """Addresses of a part's records and which of them there are."""
    place = tl.load(place_ptr + part * SLOTS + tl.arange(0, SLOTS))
    used = place != _NOWHERE
    return record_ptr + tl.multiple_of(tl.where(used, place, 0), [ALIGNED]), used


@triton.jit(do_not_specialize=["first"])
def _sum(
    share_ptr, high_ptr, total_ptr, record_ptr, place_ptr, sink_ptr, out_ptr, cos_ptr, sin_ptr,
    first,
    HEADS: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr, SLOTS: tl.constexpr,
    RECENT: tl.constexpr, PARTS: tl.constexpr, ROTATED: tl.constexpr, ALIGNED: tl.constexpr,
    CHANNELS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """CHANNELS channels of the attention of one token, rotated back."""
    gdc_wait()
    gdc_launch_dependents()
    row = (tl.program_id(0) // (WIDTH // CHANNELS)).to(tl.int64)
    token = first + row
    low = tl.program_id(0) % (WIDTH // CHANNELS) * CHANNELS
    head = tl.program_id(1) * PADDED + tl.arange(0, PADDED)
    there, slot = head < HEADS, tl.arange(0, SLOTS)
    high_ptr += row * PARTS * HEADS + head
    total_ptr += (row * PARTS * HEADS + head)[:, None] * 8 + tl.arange(0, 8)[None, :]
    place_ptr += row * PARTS * SLOTS
    share_ptr += (row * HEADS + head)[:, None] * (PARTS * SLOTS) + slot[None, :]
    high = tl.full([PADDED], _START, tl.float32)
    total = tl.zeros([PADDED, 8], tl.float32)
    out = tl.zeros([PADDED, CHANNELS], tl.float32)
    for part in tl.range(0, RECENT, num_stages=STAGES):
        share, high, total, out = _rescaled(
            share_ptr, high_ptr, total_ptr, part, there, high, total, out, HEADS, SLOTS
        )  # fmt: skip
        at, used = _records(record_ptr, place_ptr, part, SLOTS, ALIGNED)
        out = tl.dot(share, fp8_keys(at, used, low, CHANNELS, WIDTH, share.dtype), out)
    for part in tl.range(RECENT, PARTS, num_stages=STAGES):
        share, high, total, out = _rescaled(
            share_ptr, high_ptr, total_ptr, part, there, high, total, out, HEADS, SLOTS
        )  # fmt: skip
        at, used = _records(record_ptr, place_ptr, part, SLOTS, ALIGNED)
        out = tl.dot(share, fp4_keys(at, used, low, CHANNELS, WIDTH, share.dtype), out)
    total = tl.sum(tl.sum(tl.sum(tl.reshape(total, (PADDED, 2, 2, 2)), 3), 2), 1)
    total += tl.exp2(tl.load(sink_ptr + head, there, 0.0) * _LOG2_E - high)
    out = (out * (_GROWN / total)[:, None]).to(out_ptr.dtype.element_ty).to(tl.float32)
    even, odd = tl.split(tl.reshape(out, (PADDED, CHANNELS // 2, 2)))
    pair = (low // 2 + tl.arange(0, CHANNELS // 2))[None, :]
    # Rotating (odd, even) forwards is rotating (even, odd) backwards with the places changed.
    odd, even = turned(
        odd, even, cos_ptr + token * ROTATED, sin_ptr + token * ROTATED, pair, WIDTH // 2 - ROTATED
    )
    at = (token * HEADS + head)[:, None] * WIDTH + low + tl.arange(0, CHANNELS)[None, :]
    out = tl.interleave(even, odd).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, out, there[:, None])


def check(ring: Tensor, pages: PageViews | None, layout: Records) -> None:
    """Raises:
    ValueError: records are plain.
    """
    if layout.window.format == "fp32":
        raise ValueError("sparse_attention: the kernel takes quantised records; use reference")
    assert ring.stride(1) == layout.window.bytes, "ring rows lie side by side"
    assert pages is None or pages.latents.stride(1) == layout.latent.bytes, "as do entries"


def refuses_sizes(*, quantised: bool, head_dim: int) -> str | None:
    """None if the kernels take a model of these sizes, else why not."""
    if not quantised:
        return "takes quantised records only"
    if head_dim & (head_dim - 1) or not 64 <= head_dim <= _MOST_CHANNELS:
        return f"head_dim {head_dim} is no power of two from 64 to {_MOST_CHANNELS}"
    return None


def tiled(
    q: Tensor,
    records: Tensor,
    ring: Tensor,
    ids: Tensor | None,
    pages: PageViews | None,
    sink: Tensor,
    batch: Batch,
    by: Rotation,
    *,
    window: int,
    scale: float,
    layout: Records,
    tiles: Tiles,
) -> Tensor:
    """Sparse attention of few tokens (any number works); arguments as the reference's."""
    check(ring, pages, layout)
    tokens, heads, width = q.shape
    count = 0 if ids is None else ids.shape[1]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if not tokens:
        return out
    latents = records.unsqueeze(0) if pages is None else pages.latents
    blocks, recent = triton.cdiv(heads, _HEADS), triton.cdiv(window, SLOTS)
    parts = recent + triton.cdiv(count, SLOTS)
    some = min(tokens, TOKENS)
    share = q.new_empty((some, heads, parts * SLOTS))
    high = torch.empty((some, parts, heads), dtype=torch.float32, device=q.device)
    total = torch.empty((some, parts, heads, 8), dtype=torch.float32, device=q.device)
    places = torch.empty((some, parts, SLOTS), dtype=torch.int64, device=q.device)
    chosen = batch.positions if ids is None else ids.contiguous()  # any integers where none count
    apart = (ring.stride(0), latents.stride(0), layout.window.bytes, layout.latent.bytes)
    starts = (tensor.data_ptr() for tensor in (records, ring, latents))
    aligned = math.gcd(16, *apart, *starts)
    channels, queries = min(tiles.channels, width), q.contiguous()
    for first in range(0, tokens, some):
        count_here = min(some, tokens - first)
        _weigh[(count_here * parts, blocks)](
            queries, records, ring, chosen, latents, share, high, total, places,
            batch.positions, batch.rows, batch.starts, batch.lower, batch.slots, batch.page_table,
            first, scale * LOG2_E * SHRUNK, ring.stride(0), latents.stride(0),
            batch.page_table.stride(0), heads, _HEADS, width, window, ring.shape[1], count,
            1 if pages is None else pages.entries, SLOTS, recent, parts,
            min(tiles.step, width), tiles.stages,
            num_warps=4, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
        _sum[(count_here * (width // channels), blocks)](
            share, high, total, records, places, sink, out, by.cos, by.sin, first,
            heads, _HEADS, width, SLOTS, recent, parts, by.cos.shape[1], aligned,
            channels, tiles.sum_stages,
            num_warps=tiles.sum_warps, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
    return out
