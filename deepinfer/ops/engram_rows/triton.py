"""Engram hashing in Triton, one launch. Knows nothing of the table's content."""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.engram_rows.reference import EngramHash
from deepinfer.ops.portable import refuses_arch

_TOKENS = 4


@triton.jit(do_not_specialize=["tokens", "pad"])
def _rows(
    window_ptr, class_ptr, multiplier_ptr, prime_ptr, offset_ptr, out_ptr, tokens, pad,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, PADDED: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """TOKENS tokens; column c hashes the newest 2 + c // (COLUMNS // (SIZE - 1)) of them."""
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    here = token < tokens
    column = tl.arange(0, PADDED)
    oldest = column // (COLUMNS // (SIZE - 1)) + 1
    mixed = tl.zeros([TOKENS, PADDED], tl.int64)
    alive = here
    for back in tl.static_range(SIZE):
        id = tl.load(window_ptr + token.to(tl.int64) * SIZE + back, here, -1)
        alive = alive & (id >= 0)
        slot = tl.load(class_ptr + id, alive, 0)
        slot = tl.where(alive, slot, pad) * tl.load(multiplier_ptr + back)
        mixed = mixed ^ tl.where((oldest >= back)[None, :], slot[:, None], 0)
    used = column < COLUMNS
    prime = tl.load(prime_ptr + column, used, 1)[None, :]
    row = mixed % prime + tl.load(offset_ptr + column, used, 0)[None, :]
    at = token.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    tl.store(out_ptr + at, row, here[:, None] & used[None, :])


def engram_rows(window: Tensor, table: EngramHash) -> Tensor:
    """As the reference, integer for integer."""
    (tokens, size), columns = window.shape, table.primes.shape[0]
    rows = torch.empty((tokens, columns), dtype=torch.int64, device=window.device)
    if tokens:
        _rows[(triton.cdiv(tokens, _TOKENS),)](
            window.contiguous(), table.classes, table.multipliers, table.primes, table.offsets,
            rows, tokens, table.pad, size, columns, triton.next_power_of_2(columns), _TOKENS,
            num_warps=4, launch_pdl=True,
        )  # fmt: skip
    return rows


def pack(weights: Any) -> Any:
    """The constants are used as they are."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch)
