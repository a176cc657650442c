"""The tokens of decoding rows in three Triton launches; integers, and fp64 for who goes first.

The first two give each row its drafts: a draft's rank is the number of likelier ones, so there is
no sort. The third one finds the row of each token. Knows nothing of plans and networks.
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
from deepinfer.ops.portable import refuses_arch

_ROWS = 32  # a program
_COMPARED = 256  # drafts at a time
_TOKENS = 32  # a program


@triton.jit(do_not_specialize=["count"])
def _worth(
    row_ptr, length_ptr, limit_ptr, draft_ptr, cap_ptr, ended_ptr, confidence_ptr,
    temperature_ptr, worth_ptr, count,
    DRAFTS: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Probabilities fp64 [count, DRAFTS] that drafts are accepted, -1 if they may not be verified.

    Ranks compare what is stored here: computed twice, a product could round in two ways.
    """
    gdc_wait()
    gdc_launch_dependents()
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = place < count
    row = tl.load(row_ptr + place, there, 0)
    room = tl.load(limit_ptr + row) - tl.load(length_ptr + row) - 1
    wanted = tl.minimum(tl.load(cap_ptr + row), tl.load(draft_ptr + row))
    wanted = tl.maximum(tl.minimum(wanted, room), 0)
    wanted = tl.where(tl.load(ended_ptr + row) == 0, wanted, 0)
    draft = tl.arange(0, PADDED)[None, :]
    inside = draft < DRAFTS
    confidence = tl.load(confidence_ptr + row[:, None] * DRAFTS + draft, inside, 0.0)
    confidence = confidence.to(tl.float64)
    value = confidence / tl.load(temperature_ptr + draft, inside, 1.0)
    right = 1 / (1 + tl.exp(-value))
    right = tl.where((confidence == 0) | (confidence != confidence), 1.0, right)
    worth = tl.where(draft < wanted[:, None], tl.cumprod(right, 1), -1.0)
    tl.store(worth_ptr + place[:, None] * DRAFTS + draft, worth, inside & there[:, None])


@triton.jit(do_not_specialize=["count"])
def _share(
    worth_ptr, budget_ptr, verified_ptr, count,
    DRAFTS: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Drafts that one row verifies: those with fewer likelier ones than the budget."""
    gdc_wait()
    gdc_launch_dependents()
    row, draft = tl.program_id(0), tl.arange(0, PADDED)
    mine = row * DRAFTS + draft
    own = tl.load(worth_ptr + mine, draft < DRAFTS, -1.0)
    budget, size = tl.load(budget_ptr), count * DRAFTS
    ahead = tl.zeros([PADDED], tl.int32)
    if budget < size:
        for start in range(0, size, BLOCK):
            other = start + tl.arange(0, BLOCK)
            worth = tl.load(worth_ptr + other, other < size, -1.0)[:, None]
            before = (worth == own[None, :]) & (other[:, None] < mine[None, :])
            ahead += tl.sum(((worth > own[None, :]) | before).to(tl.int32), 0)
    taken = (own >= 0) & (ahead < budget)
    tl.store(verified_ptr + row, tl.sum(taken.to(tl.int64), 0))


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
        padded = triton.next_power_of_2(drafts)
        worth = torch.empty((count, drafts), dtype=torch.float64, device=rows.device)
        _worth[(triton.cdiv(count, _ROWS),)](
            rows, table.length, table.limit, table.drafts, table.cap, table.ended,
            table.confidence, table.temperature, worth, count, drafts, padded, _ROWS,
            num_warps=4, launch_pdl=True,
        )  # fmt: skip
        _share[(count,)](
            worth, table.budget, verified, count, drafts, padded, _COMPARED,
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
    return refuses_arch(arch)
