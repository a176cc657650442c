"""Sparse attention in Triton: one program a token and 64 heads, blocks of 64 slots in list order.

Keys are gathered and decoded where they lie (window ring, this step's records, pages) and serve as
values too. Products run in bf16 with fp32 sums; the running maximum moves as in the reference.
A second launch rotates the output back. Knows nothing of how entries were selected.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.arch import Records
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.rotation import Rotation
from deepinfer.ops.sparse_attention.reference import BLOCK
from deepinfer.ops.triton_rows import fp4_value, turned

_HEADS = 64  # most heads a program; fewer are padded, as the matrix unit takes 64 rows
_ROTATE_HEADS = 4
_WARPS = 8


@triton.jit
def _window_keys(near_ptr, far_ptr, fresh, used, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """Decoded FP8 records [slots, WIDTH]: `near_ptr` where fresh, else `far_ptr`."""
    slots: tl.constexpr = near_ptr.shape[0]
    column = tl.arange(0, WIDTH)[None, :]
    group = WIDTH + tl.arange(0, WIDTH // 32)[None, :]
    new, old = (used & fresh)[:, None], (used & (fresh == 0))[:, None]
    near, far = near_ptr[:, None], far_ptr[:, None]
    code = tl.load(near + column, new, 0) | tl.load(far + column, old, 0)
    byte = tl.load(near + group, new, 0) | tl.load(far + group, old, 0)
    size = (byte.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    value = tl.reshape(value, (slots, WIDTH // 32, 32)) * size[:, :, None]
    return tl.reshape(value.to(KIND), (slots, WIDTH))


@triton.jit
def _latent_keys(entry_ptr, used, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """Decoded FP4 entries [slots, WIDTH], one E4M3 scale for 16 channels."""
    slots: tl.constexpr = entry_ptr.shape[0]
    half: tl.constexpr = WIDTH // 2
    here = used[:, None]
    code = tl.load(entry_ptr[:, None] + tl.arange(0, half)[None, :], here, 0).to(tl.int32)
    group = half + tl.arange(0, WIDTH // 16)[None, :]
    size = tl.load(entry_ptr[:, None] + group, here, 0).to(tl.float8e4nv, bitcast=True)
    size = size.to(tl.float32)[:, :, None]
    code = tl.reshape(code, (slots, WIDTH // 16, 8))
    low = tl.reshape((fp4_value(code & 15) * size).to(KIND), (slots, half))
    high = tl.reshape((fp4_value(code >> 4) * size).to(KIND), (slots, half))
    return tl.interleave(low, high)


@triton.jit
def _attend(q, key, used, high, total, out, scale):
    """Take one block of slots into the running sums."""
    score = tl.dot(q, tl.trans(key)) * scale
    score = tl.where(used[None, :], score, float("-inf"))
    higher = tl.maximum(high, tl.max(score, 1))
    shrink = tl.exp(high - higher)
    share = tl.exp(score - higher[:, None])
    total = total * shrink + tl.sum(share, 1)
    out = tl.dot(share.to(q.dtype), key, out * shrink[:, None])
    return higher, total, out


@triton.jit(do_not_specialize=["scale", "ring_slot", "page_size", "table_width"])
def _attention(
    q_ptr, record_ptr, ring_ptr, ids_ptr, latent_ptr, sink_ptr, out_ptr,
    position_ptr, row_ptr, start_ptr, lower_ptr, slot_ptr, table_ptr,
    scale, ring_slot, page_size, table_width,
    HEADS: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr,
    RING: tl.constexpr, IDS: tl.constexpr, ENTRIES: tl.constexpr, SLOTS: tl.constexpr,
):  # fmt: skip
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * PADDED + tl.arange(0, PADDED)
    at = (token * HEADS + head)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    q = tl.load(q_ptr + at, (head < HEADS)[:, None], 0.0)
    position, row = tl.load(position_ptr + token), tl.load(row_ptr + token)
    start = tl.load(start_ptr + token)
    first = tl.maximum(tl.maximum(tl.load(lower_ptr + token), position - WINDOW + 1), 0)
    ring_ptr += tl.load(slot_ptr + row) * ring_slot
    table_ptr += row * table_width
    high = tl.full([PADDED], -1e30, tl.float32)
    total = tl.zeros([PADDED], tl.float32)
    out = tl.zeros([PADDED, WIDTH], tl.float32)
    record: tl.constexpr = WIDTH + WIDTH // 32
    for low in range(0, WINDOW, SLOTS):
        wanted = first + low + tl.arange(0, SLOTS)
        used = wanted <= position
        near = record_ptr + (token - position + wanted) * record
        far = ring_ptr + wanted % RING * record
        key = _window_keys(near, far, wanted >= start, used, WIDTH, q.dtype)
        high, total, out = _attend(q, key, used, high, total, out, scale)
    if IDS > 0:
        for low in range(0, IDS, SLOTS):
            slot = low + tl.arange(0, SLOTS)
            chosen = tl.load(ids_ptr + token * IDS + slot, slot < IDS, -1)
            used = chosen >= 0
            page = tl.load(table_ptr + chosen // ENTRIES, used, 0)
            entry = latent_ptr + page * page_size + chosen % ENTRIES * (WIDTH // 2 + WIDTH // 16)
            key = _latent_keys(entry, used, WIDTH, q.dtype)
            high, total, out = _attend(q, key, used, high, total, out, scale)
    total += tl.exp(tl.load(sink_ptr + head, head < HEADS, 0.0) - high)
    out = out / total[:, None]
    tl.store(out_ptr + at, out.to(q.dtype), (head < HEADS)[:, None])


@triton.jit
def _turn_back(
    out_ptr, cos_ptr, sin_ptr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, ROTATED: tl.constexpr, BLOCK_HEADS: tl.constexpr,
):  # fmt: skip
    """Rotate the last 2 * ROTATED channels of some heads by the negative angle, in place."""
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    channel = WIDTH - 2 * ROTATED + tl.arange(0, 2 * ROTATED)
    at = out_ptr + (token * HEADS + head)[:, None] * WIDTH + channel[None, :]
    here = (head < HEADS)[:, None]
    both = tl.load(at, here, 0.0)
    pairs = tl.reshape(both.to(tl.float32), (BLOCK_HEADS, ROTATED, 2))
    even, odd = tl.split(pairs)
    pair = tl.arange(0, ROTATED)[None, :]
    cos_ptr += token * ROTATED
    sin_ptr += token * ROTATED
    # Rotating (odd, even) forwards is rotating (even, odd) backwards with the places changed.
    odd, even = turned(odd, even, cos_ptr, sin_ptr, pair, 0)
    tl.store(at, tl.interleave(even, odd).to(both.dtype), here)


def sparse_attention(
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
) -> Tensor:
    """As the reference, for bf16 queries and quantised records.

    Raises:
        ValueError: records are plain.
    """
    if layout.window.format == "fp32":
        raise ValueError("sparse_attention: the kernel takes quantised records; use reference")
    tokens, heads, width = q.shape
    count = 0 if ids is None else ids.shape[1]
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if not tokens:
        return out
    latents = records.unsqueeze(0) if pages is None else pages.latents
    assert ring.stride(1) == layout.window.bytes, "ring rows lie side by side"
    assert pages is None or latents.stride(1) == layout.latent.bytes, "entries lie side by side"
    padded = min(_HEADS, max(16, triton.next_power_of_2(heads)))
    _attention[(tokens, triton.cdiv(heads, padded))](
        q.contiguous(), records, ring, records if ids is None else ids.contiguous(), latents,
        sink, out, batch.positions, batch.rows, batch.starts, batch.lower, batch.slots,
        batch.page_table, scale, ring.stride(0), latents.stride(0), batch.page_table.stride(0),
        heads, padded, width, window, ring.shape[1], count, 1 if pages is None else pages.entries,
        BLOCK,
        num_warps=_WARPS, num_stages=1, launch_pdl=True,
    )  # fmt: skip
    _turn_back[(tokens, triton.cdiv(heads, _ROTATE_HEADS))](
        out, by.cos, by.sin, heads, width, by.cos.shape[1], _ROTATE_HEADS,
        num_warps=4, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
    return out


def pack(weights: Tensor) -> Tensor:
    """The sinks as they are."""
    return weights


def refuses(*, arch: str, quantised: bool, head_dim: int, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    if arch != "sm90":
        return f"written for sm90, not {arch}"
    if not quantised:
        return "takes quantised records only"
    if head_dim & (head_dim - 1) or head_dim < 64:
        return f"head_dim {head_dim} is no power of two from 64 on"
    return None
