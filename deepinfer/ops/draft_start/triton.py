"""What draft blocks start from in one Triton launch; integers. Knows nothing of the stages."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.draft_start.reference import DraftStart, KnownRows
from deepinfer.ops.portable import refuses_arch


@triton.jit(do_not_specialize=["count"])
def _start(
    row_ptr, token_ptr, length_ptr, slot_ptr, start_ptr, lower_ptr, out_ptr, id_ptr, position_ptr,
    count, width,
    SIZE: tl.constexpr, PADDED: tl.constexpr, NOISE: tl.constexpr,
):  # fmt: skip
    gdc_wait()
    gdc_launch_dependents()
    request, place = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    row = tl.load(row_ptr + request)
    length = tl.load(length_ptr + row)
    newest = tl.load(token_ptr + row * width + length - 1)
    anchor = tl.maximum(length - 2, 0)
    lower = tl.maximum(tl.load(start_ptr + row), tl.load(lower_ptr + row))
    tl.store(out_ptr + request, newest)
    tl.store(out_ptr + count + request, anchor)
    tl.store(out_ptr + 2 * count + request, tl.where(row > 0, tl.load(slot_ptr + row), 0))
    tl.store(out_ptr + 3 * count + request, lower)
    at, inside = request * SIZE + place, place < SIZE
    tl.store(id_ptr + at, tl.where(place == 0, newest, NOISE), inside)
    tl.store(position_ptr + at, anchor + 1 + place, inside)


def draft_start(table: KnownRows, rows: Tensor, *, block: int, noise: int) -> DraftStart:
    """As the reference."""
    count = len(rows)
    out = rows.new_empty((4, count))
    ids, positions = torch.empty((2, count * block), dtype=torch.int64, device=rows.device)
    if count:
        _start[(count,)](
            rows, table.tokens, table.length, table.slot, table.decoder_start, table.lower, out,
            ids, positions, count, table.tokens.stride(0),
            block, triton.next_power_of_2(block), noise,
            num_warps=1, launch_pdl=True,
        )  # fmt: skip
    return DraftStart(*out.unbind(0), ids, positions)


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch)
