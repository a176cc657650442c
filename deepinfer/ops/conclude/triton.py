"""The end of a step in one Triton launch, a program a row; integers only, the reference's results.

Knows nothing of how tokens and drafts were drawn.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.conclude.reference import Concluded, Group, RowTable
from deepinfer.ops.portable import refuses_arch
from deepinfer.step import FLAG_END, FLAG_LIMIT, FLAG_STOP_ID

_END: tl.constexpr = tl.constexpr(FLAG_END)
_LIMIT: tl.constexpr = tl.constexpr(FLAG_LIMIT)
_STOP_ID: tl.constexpr = tl.constexpr(FLAG_STOP_ID)


@triton.jit
def _at(values, depth, place):
    """The value at one place, 0 if it is none."""
    return tl.sum(tl.where(depth == place, values, 0), 0)


@triton.jit
def _conclude(
    token_ptr, length_ptr, limit_ptr, draft_ptr, ended_ptr, end_ptr, stop_ptr,
    row_ptr, verified_ptr, first_ptr, legal_ptr, chosen_ptr, flag_ptr, packed_ptr, index_ptr,
    width,
    CAP: tl.constexpr, COLUMNS: tl.constexpr, STOPS: tl.constexpr, STOPS_PADDED: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    gdc_wait()
    gdc_launch_dependents()
    group, depth = tl.program_id(0).to(tl.int64), tl.arange(0, COLUMNS)
    row, verified = tl.load(row_ptr + group), tl.load(verified_ptr + group)
    length, ended = tl.load(length_ptr + row), tl.load(ended_ptr + row) != 0
    over = ended
    if MASKED:
        legal = tl.load(legal_ptr + row)
        verified, over = tl.minimum(verified, tl.maximum(legal, 0)), over | (legal < 0)
    here = depth <= verified
    index = tl.where(here, tl.load(first_ptr + group) + depth, 0)
    chosen = tl.load(chosen_ptr + index, here, -1)
    flags = tl.load(flag_ptr + index, here, 0)
    token_ptr += row * width + length
    draft = tl.load(token_ptr + depth, depth < verified, -1)
    accepted = tl.min(tl.where((draft >= 0) & (draft == chosen), COLUMNS, depth), 0)
    tokens = tl.where(depth <= accepted, chosen, -1)
    flag = _at(flags, depth, accepted)
    there = tokens >= 0
    end = there & (tokens == tl.load(end_ptr + row))
    width_ = tl.arange(0, STOPS_PADDED)
    stops = tl.load(stop_ptr + row * STOPS + width_, width_ < STOPS, -1)
    stop = there & (tl.max((tokens[:, None] == stops[None, :]).to(tl.int32), 1) > 0)
    full = there & (length + depth + 1 >= tl.load(limit_ptr + row))
    reasons = tl.where(end, _END, tl.where(stop, _STOP_ID, 0)) + tl.where(full, _LIMIT, 0)
    last = tl.min(tl.where(reasons > 0, depth, COLUMNS), 0)
    tokens = tl.where((depth > last) | over, -1, tokens)
    flag = tl.where(last < COLUMNS, _at(reasons, depth, last), flag)
    flag = tl.where(over, 0, flag)
    there = tokens >= 0
    count = tl.sum(there.to(tl.int32), 0)
    tl.store(token_ptr + depth, tokens, there)
    tl.store(length_ptr + row, length + count)
    tl.store(ended_ptr + row, ended | (flag != 0))
    tl.store(draft_ptr + row, tl.zeros_like(length))
    packed_ptr += group * (4 + CAP)
    tl.store(packed_ptr, verified.to(tl.int32))
    tl.store(packed_ptr + 1, tl.where(over, 0, tl.minimum(accepted, count)))
    tl.store(packed_ptr + 2, flag)
    tl.store(packed_ptr + 3 + depth, tokens.to(tl.int32), depth <= CAP)
    tl.store(index_ptr + group * (1 + CAP) + depth, index, depth <= CAP)


def conclude(
    table: RowTable, group: Group, chosen: Tensor, flags: Tensor, *, cap: int
) -> Concluded:
    """As the reference."""
    count, width = len(group.row), table.stop_ids.shape[1]
    packed = torch.empty((count, 4 + cap), dtype=torch.int32, device=chosen.device)
    index = torch.empty((count, 1 + cap), dtype=torch.int64, device=chosen.device)
    if count:
        _conclude[(count,)](
            table.tokens, table.length, table.limit, table.drafts, table.ended, table.end_id,
            table.stop_ids, *group[:3], group.row if group.legal is None else group.legal,
            chosen, flags, packed, index, table.tokens.stride(0),
            cap, triton.next_power_of_2(2 + cap), width, triton.next_power_of_2(width),
            group.legal is not None,
            num_warps=1, launch_pdl=True,
        )  # fmt: skip
    return Concluded(packed, index)


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch)
