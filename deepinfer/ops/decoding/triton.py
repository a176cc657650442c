"""The tokens of decoding rows in two Triton launches; integers, and fp64 for who goes first.

The first launch gives each row its drafts: a draft's rank is the number of likelier ones, so there
is no sort. The second one finds the row of each token. Knows nothing of plans and networks.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.decoding.reference import Decoding, RowState

_ROWS = 32  # whose drafts are compared at a time
_TOKENS = 32  # a program


@triton.jit
def _worth(
    row, there, length_ptr, limit_ptr, draft_ptr, cap_ptr, ended_ptr, confidence_ptr,
    temperature_ptr,
    DRAFTS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Probability fp64 [rows, PADDED] that drafts are accepted, -1 if they may not be verified;
    how many may [rows]."""
    room = tl.load(limit_ptr + row) - tl.load(length_ptr + row) - 1
    wanted = tl.minimum(tl.load(cap_ptr + row), tl.load(draft_ptr + row))
    wanted = tl.maximum(tl.minimum(wanted, room), 0)
    wanted = tl.where(there & (tl.load(ended_ptr + row) == 0), wanted, 0)
    draft = tl.arange(0, PADDED)[None, :]
    inside = draft < DRAFTS
    at = row[:, None] * DRAFTS + draft
    confidence = tl.load(confidence_ptr + at, inside, 0.0).to(tl.float64)
    value = confidence / tl.load(temperature_ptr + draft, inside, 1.0)
    right = 1 / (1 + tl.exp(-value))
    right = tl.where((confidence == 0) | (confidence != confidence), 1.0, right)
    worth = tl.cumprod(right, 1)
    return tl.where(inside & (draft < wanted[:, None]), worth, -1.0), wanted


@triton.jit(do_not_specialize=["count"])
def _share(
    row_ptr, length_ptr, limit_ptr, draft_ptr, cap_ptr, ended_ptr, confidence_ptr,
    temperature_ptr, budget_ptr, verified_ptr, count,
    DRAFTS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Drafts that one row verifies."""
    gdc_wait()
    gdc_launch_dependents()
    mine = tl.program_id(0)
    own, wanted = _worth(
        tl.load(row_ptr + mine + tl.zeros([1], tl.int32)), tl.full([1], True, tl.int1),
        length_ptr, limit_ptr, draft_ptr, cap_ptr, ended_ptr, confidence_ptr, temperature_ptr,
        DRAFTS, PADDED,
    )  # fmt: skip
    budget, draft = tl.load(budget_ptr), tl.arange(0, PADDED)
    ahead = tl.zeros([1, PADDED], tl.int32)
    if budget < count * DRAFTS:
        for start in range(0, count, ROWS):
            other = start + tl.arange(0, ROWS)
            there = other < count
            worth, _ = _worth(
                tl.load(row_ptr + other, there, 0), there,
                length_ptr, limit_ptr, draft_ptr, cap_ptr, ended_ptr, confidence_ptr,
                temperature_ptr, DRAFTS, PADDED,
            )  # fmt: skip
            place = other[:, None] * PADDED + draft[None, :]
            place = tl.reshape(place, (ROWS * PADDED, 1))
            worth = tl.reshape(worth, (ROWS * PADDED, 1))
            before = (worth == own) & (place < mine * PADDED + draft[None, :])
            ahead += tl.sum(((worth > own) | before).to(tl.int32), 0)[None, :]
    taken = (own >= 0) & (ahead < budget)
    tl.store(verified_ptr + mine + tl.zeros([1], tl.int32), tl.sum(taken.to(tl.int64), 1))


@triton.jit(do_not_specialize=["count", "total"])
def _spread(
    row_ptr, verified_ptr, token_ptr, length_ptr, lower_ptr, cached_ptr, first_ptr, out_ptr,
    history_ptr, count, total, width,
    PADDED: tl.constexpr, TOKENS: tl.constexpr, NGRAM: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """TOKENS tokens: seven columns of `out`, and their history."""
    gdc_wait()
    gdc_launch_dependents()
    number = tl.arange(0, PADDED)
    sizes = tl.load(verified_ptr + number, number < count, -1).to(tl.int32) + 1
    ends = tl.cumsum(sizes, 0)
    if tl.program_id(0) == 0:
        tl.store(first_ptr + number, (ends - sizes).to(tl.int64), number < count)
    place = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    here = place < total
    passed = (ends[None, :] <= place[:, None]) & (number < count)[None, :]
    group = tl.sum(passed.to(tl.int32), 1)
    real = here & (group < count)
    row = tl.load(row_ptr + group, real, 0)
    depth = tl.where(real, place - tl.max(tl.where(passed, ends[None, :], 0), 1), 0)
    start = tl.where(real, tl.load(length_ptr + row, real, 1) - 1, 0)
    end = start + tl.load(verified_ptr + group, real, 0) + 1
    position = start + depth
    out_ptr += place
    tl.store(out_ptr, row, here)
    tl.store(out_ptr + total, position, here)
    tl.store(out_ptr + 2 * total, start, here)
    tl.store(out_ptr + 3 * total, end, here)
    tl.store(out_ptr + 4 * total, tl.load(lower_ptr + row), here)
    tl.store(out_ptr + 5 * total, tl.load(cached_ptr + row), here)
    tl.store(out_ptr + 6 * total, depth.to(tl.int64), here)
    word = tl.arange(0, WORDS)[None, :]
    back = position[:, None] - word
    known = here[:, None] & (word < NGRAM)
    ids = tl.load(token_ptr + row[:, None] * width + back, known & (back >= 0), -1)
    tl.store(history_ptr + place[:, None] * NGRAM + word, ids, known)


def decoding(table: RowState, rows: Tensor, *, places: int, ngram: int) -> Decoding:
    """As the reference; only who verifies a draft may differ where two are equally likely."""
    count, drafts = len(rows), table.confidence.shape[1]
    total = count + places if count else 0
    verified = torch.zeros_like(rows) if not drafts else torch.empty_like(rows)
    first, out = torch.empty_like(rows), rows.new_empty((7, total))
    words = rows.new_empty((total, ngram))
    if count and drafts:
        _share[(count,)](
            rows, table.length, table.limit, table.drafts, table.cap, table.ended,
            table.confidence, table.temperature, table.budget, verified, count,
            drafts, triton.next_power_of_2(drafts), _ROWS,
            num_warps=4, launch_pdl=True,
        )  # fmt: skip
    if count:
        _spread[(triton.cdiv(total, _TOKENS),)](
            rows, verified, table.tokens, table.length, table.lower, table.cached, first, out,
            words, count, total, table.tokens.stride(0),
            max(32, triton.next_power_of_2(count)), _TOKENS, ngram, triton.next_power_of_2(ngram),
            num_warps=4, launch_pdl=True,
        )  # fmt: skip
    return Decoding(verified, first, *out.unbind(0), words)


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    return None if arch in ("sm90", "sm100") else f"written for sm90 and sm100, not {arch}"
