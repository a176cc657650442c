"""Sparse attention on Hopper: two launches for few tokens, others for many, with equal bits.

Knows nothing of how entries were selected.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from deepinfer.arch import Records
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.rotation import Rotation
from deepinfer.ops.sparse_attention import triton_slices, triton_split
from deepinfer.ops.sparse_attention.triton_attend import attend
from deepinfer.ops.sparse_attention.triton_split import LOG2_E, SHRUNK, SLOTS

_MANY = 96  # tokens from which one launch is faster
_PROGRAMS = 132  # multiprocessors of an H200; a program of the one launch fills one
_MOST_SLOTS = 1024  # of a key list, whose places fit beside the keys of the one launch


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
    given = (q, records, ring, ids, pages, sink, batch, by)
    slots = window if ids is None else window + ids.shape[1] + SLOTS
    if len(q) < _MANY or slots > _MOST_SLOTS:
        tiles = triton_split.choose(len(q))
        return triton_split.tiled(*given, window=window, scale=scale, layout=layout, tiles=tiles)
    triton_split.check(ring, pages, layout)
    return in_runs(*given, window=window, scale=scale, layout=layout)


def in_runs(
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
    programs: int = _PROGRAMS,
) -> Tensor:
    """Attention whose long slices go each in two launches, the tokens between them in one."""
    q, out = q.contiguous(), torch.empty_like(q, memory_format=torch.contiguous_format)
    given = (q, records, ring, ids, pages, sink, batch, by)
    fixed: dict[str, Any] = {
        "window": window, "scale": scale, "layout": layout, "out": out, "programs": programs,
    }  # fmt: skip
    done = 0
    for first, last in batch.slices:
        if triton_slices.rows(last - first, q.shape[2], ring, pages, batch):
            in_one(*given, **fixed, span=(done, first))
            triton_slices.attend_slice(*given, **fixed, span=(first, last))
            done = last
    return in_one(*given, **fixed, span=(done, len(q)))


def in_one(
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
    programs: int = _PROGRAMS,
    out: Tensor | None = None,
    span: tuple[int, int] | None = None,
) -> Tensor:
    """Attention in one launch of so many programs; at most 1,024 slots a token.

    Only the rows `span` (first, after last) of `out` are written, where these are given.
    """
    tokens, heads, width = q.shape
    count = 0 if ids is None else ids.shape[1]
    begin, end = (0, tokens) if span is None else span
    if out is None:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if begin == end:
        return out
    latents = records.unsqueeze(0) if pages is None else pages.latents
    recent = triton.cdiv(window, SLOTS)
    parts = recent + triton.cdiv(count, SLOTS)
    if parts == 1:  # a part without records: the kernel looks two parts ahead
        recent = parts = 2
    assert parts * SLOTS <= _MOST_SLOTS, "the places of a key list fit"
    chosen = batch.positions if ids is None else ids.contiguous()  # any integers where none count
    apart = (ring.stride(0), latents.stride(0), layout.window.bytes, layout.latent.bytes)
    starts = (tensor.data_ptr() for tensor in (records, ring, latents))
    aligned, rotated = math.gcd(16, *apart, *starts), by.cos.shape[1]
    attend[(min(end - begin, programs), triton.cdiv(heads, 64))](
        q.contiguous(), records, ring, chosen, latents, sink, out, by.cos, by.sin,
        batch.positions, batch.rows, batch.starts, batch.lower, batch.slots, batch.page_table,
        begin, end, scale * LOG2_E * SHRUNK, ring.stride(0), latents.stride(0),
        batch.page_table.stride(0), heads, width, window, ring.shape[1], count,
        1 if pages is None else pages.entries, rotated,
        max(64, triton.next_power_of_2(2 * rotated)), recent, parts,
        triton.next_power_of_2(parts), aligned,
        num_warps=8, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
    return out


def pack(weights: Tensor) -> Tensor:
    """The sinks as they are."""
    return weights


def refuses(*, arch: str, quantised: bool, head_dim: int, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    if arch != "sm90":
        return f"written for sm90, not {arch}"
    return triton_split.refuses_sizes(quantised=quantised, head_dim=head_dim)
