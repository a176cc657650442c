"""Sparse attention of a long slice: the keys that it may see are decoded once, then attended to.

Tokens of a slice share their window and select the same entries many times; a key's bf16 is exact.
Knows nothing of how entries were selected.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_wait

from deepinfer.arch import Records
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.rotation import Rotation
from deepinfer.ops.sparse_attention.scratch import decoded_rows
from deepinfer.ops.sparse_attention.triton_shared import attend_rows
from deepinfer.ops.sparse_attention.triton_split import (
    LOG2_E,
    SHRUNK,
    SLOTS,
    fp4_keys,
    fp8_keys,
)

_LINES = 16  # keys that a program decodes
_REGISTERS = (216, 72)  # of a thread that multiplies and of one that brings keys


@triton.jit(do_not_specialize=["begin", "count", "table_width"])
def _decode(
    record_ptr, ring_ptr, latent_ptr, key_ptr, row_ptr, end_ptr, slot_ptr, table_ptr,
    begin, count, ring_slot, page_size, table_width,
    WIDTH: tl.constexpr, RING: tl.constexpr, ENTRIES: tl.constexpr, RATIO: tl.constexpr,
    LINES: tl.constexpr,
):  # fmt: skip
    """LINES keys, divided by 2^16: of a slice's ring, of its own records, or entries that exist.

    The launch that reads them starts when all programs have ended: its own take a whole
    multiprocessor each and would keep these from it.
    """
    gdc_wait()
    record: tl.constexpr = WIDTH + WIDTH // 32
    recent = tl.cdiv(RING + count, LINES)
    program = tl.program_id(0)
    request = tl.load(row_ptr + begin)
    line, column = tl.arange(0, LINES), tl.arange(0, WIDTH)[None, :]
    if program < recent:
        line += program * LINES
        ring_ptr += tl.load(slot_ptr + request) * ring_slot
        own = record_ptr + (begin + line - RING).to(tl.int64) * record
        at, used = tl.where(line < RING, ring_ptr + line * record, own), line < RING + count
        key = fp8_keys(at, used, 0, WIDTH, WIDTH, key_ptr.dtype.element_ty)
        tl.store(key_ptr + line.to(tl.int64)[:, None] * WIDTH + column, key, used[:, None])
    else:
        line += (program - recent) * LINES
        exist = tl.load(end_ptr + begin) // RATIO
        if (program - recent) * LINES < exist:
            used = line < exist
            page = tl.load(table_ptr + request * table_width + line // ENTRIES, used, 0)
            at = latent_ptr + page * page_size + line % ENTRIES * (WIDTH // 2 + WIDTH // 16)
            key = fp4_keys(at, used, 0, WIDTH, WIDTH, key_ptr.dtype.element_ty)
            row = RING + count + line.to(tl.int64)
            tl.store(key_ptr + row[:, None] * WIDTH + column, key, used[:, None])


def rows(tokens: int, width: int, ring: Tensor, pages: PageViews | None, batch: Batch) -> int:
    """Rows for the decoded keys of a slice; 0 if it should not have this way.

    The bound on entries is what the host knows: those of the longest request of the step.
    """
    entries = 0 if pages is None else batch.page_table.shape[1] * pages.entries
    return decoded_rows(tokens, width, ring.shape[1], entries)


def attend_slice(
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
    out: Tensor,
    span: tuple[int, int],
    programs: int,
) -> None:
    """Attention of the slice of tokens `span` into its rows of `out`, by so many programs."""
    (begin, end), (_, heads, width) = span, q.shape
    count = rows(end - begin, width, ring, pages, batch)
    keys = torch.empty((count, width), dtype=q.dtype, device=q.device)
    latents, entries, ratio = records.unsqueeze(0), 1, 1
    if pages is not None:
        latents, entries, ratio = pages.latents, pages.entries, pages.ratio
    recent = triton.cdiv(ring.shape[1] + end - begin, _LINES)
    others = triton.cdiv(count - ring.shape[1] - (end - begin), _LINES)
    _decode[(recent + others,)](
        records, ring, latents, keys, batch.rows, batch.ends, batch.slots, batch.page_table,
        begin, end - begin, ring.stride(0), latents.stride(0), batch.page_table.stride(0),
        width, ring.shape[1], entries, ratio, _LINES,
        num_warps=4, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
    selected = 0 if ids is None else ids.shape[1]
    chosen = batch.positions if ids is None else ids.contiguous()  # any integers where none count
    rotated, recent = by.cos.shape[1], triton.cdiv(window, SLOTS)
    parts = 2 * triton.cdiv(recent + triton.cdiv(selected, SLOTS), 2)
    attend_rows[(min(end - begin, programs), triton.cdiv(heads, 64))](
        q, keys, chosen, sink, out, by.cos, by.sin,
        batch.positions, batch.starts, batch.lower, begin, end, scale * LOG2_E * SHRUNK,
        heads, width, window, ring.shape[1], selected, rotated,
        max(64, triton.next_power_of_2(2 * rotated)), recent, parts,
        triton.next_power_of_2(parts), *_REGISTERS,
        num_warps=4, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
