"""Drafts into the row table in one Triton launch. Knows nothing of who proposed them."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.draft_store.reference import DraftRows
from deepinfer.ops.portable import refuses_arch


@triton.jit(do_not_specialize=["across", "down"])
def _store(
    row_ptr, draft_ptr, confidence_ptr, token_ptr, length_ptr, count_ptr, known_ptr, packed_ptr,
    width, across, down,
    COUNT: tl.constexpr, PADDED: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    gdc_wait()
    gdc_launch_dependents()
    request, place = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    row, here = tl.load(row_ptr + request), place < COUNT
    draft = tl.load(draft_ptr + request * down + place * across, here, 0)
    confidence = tl.load(confidence_ptr + request * COUNT + place, here, 0.0).to(tl.float32)
    tl.store(token_ptr + row * width + tl.load(length_ptr + row) + place, draft, here)
    tl.store(known_ptr + row * MOST + place, confidence, here)
    tl.store(count_ptr + row, COUNT)
    packed_ptr += request * 2 * COUNT + place
    tl.store(packed_ptr, draft.to(tl.int32), here)
    tl.store(packed_ptr + COUNT, confidence.to(tl.int32, bitcast=True), here)


def draft_store(table: DraftRows, rows: Tensor, tokens: Tensor, confidence: Tensor) -> Tensor:
    """As the reference."""
    groups, count = tokens.shape
    packed = torch.empty((groups, 2 * count), dtype=torch.int32, device=rows.device)
    if packed.numel():
        _store[(groups,)](
            rows, tokens, confidence.contiguous(), table.tokens, table.length, table.drafts,
            table.confidence, packed, table.tokens.stride(0), tokens.stride(1), tokens.stride(0),
            count, triton.next_power_of_2(count), table.confidence.shape[1],
            num_warps=1, launch_pdl=True,
        )  # fmt: skip
    return packed


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch)
