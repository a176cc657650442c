"""Log-probabilities in Triton, with the reference's bits. Rows that want none are passed over.

Masses are integers, so the total does not depend on how a row is cut. Knows nothing of laws.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.sample.logprobs import RowLogprobs, limited
from deepinfer.ops.sample.state import SamplerState
from deepinfer.ops.sample.triton_cut import highest
from deepinfer.ops.sample.triton_numbers import key_of, log_of_masses, mass_of
from deepinfer.ops.triton_best import best

_WARPS = 4


@triton.jit
def _masses(
    logit_ptr, high_ptr, mass_ptr, row_ptr, wanted_ptr,
    VOCAB: tl.constexpr, CHUNKS: tl.constexpr, PADDED: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Sum of the masses of one chunk of a position."""
    gdc_wait()
    gdc_launch_dependents()
    at, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    total = tl.full([], 0, tl.int64)
    if tl.load(wanted_ptr + tl.load(row_ptr + at)) >= 0:
        high = highest(high_ptr, at, CHUNKS, PADDED)
        for start in range(chunk * CHUNK, chunk * CHUNK + CHUNK, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            logit = tl.load(logit_ptr + at * VOCAB + ids, ids < VOCAB, float("-inf"))
            total += tl.sum(mass_of(key_of(logit - high, tl.zeros_like(ids))), 0)
    tl.store(mass_ptr + at * CHUNKS + chunk, total)


@triton.jit
def _value(logit, high, log_total):
    """Log-probability fp32 of a logit."""
    return ((logit - high).to(tl.float64) - log_total).to(tl.float32)


@triton.jit
def _values(
    logit_ptr, high_ptr, mass_ptr, chosen_ptr, value_ptr, ahead_ptr, row_ptr, wanted_ptr,
    VOCAB: tl.constexpr, CHUNKS: tl.constexpr, PADDED: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Log-probabilities of one chunk, and how many of them come before the chosen id's."""
    gdc_wait()
    gdc_launch_dependents()
    at, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count = tl.full([], 0, tl.int32)
    if tl.load(wanted_ptr + tl.load(row_ptr + at)) >= 0:
        high = highest(high_ptr, at, CHUNKS, PADDED)
        part = tl.arange(0, PADDED)
        mass = tl.load(mass_ptr + at * CHUNKS + part, part < CHUNKS, 0)
        log_total = log_of_masses(tl.sum(mass, 0))
        chosen = tl.maximum(tl.load(chosen_ptr + at), 0)
        own = _value(tl.load(logit_ptr + at * VOCAB + chosen), high, log_total)
        for start in range(chunk * CHUNK, chunk * CHUNK + CHUNK, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            there = ids < VOCAB
            logit = tl.load(logit_ptr + at * VOCAB + ids, there, float("-inf"))
            value = _value(logit, high, log_total)
            tl.store(value_ptr + at * VOCAB + ids, value, there)
            ahead = (value > own) | ((value == own) & (ids < chosen))
            count += tl.sum((ahead & there).to(tl.int32), 0)
    tl.store(ahead_ptr + at * CHUNKS + chunk, count)


def reported(
    logits: Tensor,
    high: Tensor,
    chosen: Tensor,
    state: SamplerState,
    rows: Tensor,
    wanted: Tensor,
    chunk: int,
    block: int,
) -> RowLogprobs:
    """As `reference.reported`, of raw logits.

    Args:
        logits: [n, vocab] fp32, raw, contiguous.
        high: [n, chunks] fp32, the largest logit of each chunk.
        chosen: [n] int64.
        state: sampling values of all rows.
        rows: [n] int64.
        wanted: [n] int64, entries of each position, NO_LOGPROBS = not even the chosen one's.
        chunk: ids a program.
        block: of them at a time.
    """
    (count, vocab), chunks = logits.shape, high.shape[1]
    masses = torch.empty_like(high, dtype=torch.int64)
    ahead = torch.empty_like(high, dtype=torch.int32)
    values = torch.empty_like(logits)
    sizes = vocab, chunks, triton.next_power_of_2(chunks), chunk, block
    _masses[(count, chunks)](
        logits, high, masses, rows, state.logprobs, *sizes,
        num_warps=_WARPS, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
    _values[(count, chunks)](
        logits, high, masses, chosen, values, ahead, rows, state.logprobs, *sizes,
        num_warps=_WARPS, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
    none = chosen < 0
    own = values.gather(1, chosen.clamp(min=0).unsqueeze(1)).squeeze(1)
    rank = 1 + ahead.sum(1)
    most = min(state.uses.logprobs, vocab)
    ids, top = _ordered(values, most)
    found = RowLogprobs(
        own.masked_fill(none, 0.0),
        rank.masked_fill(none, 0).to(torch.int32),
        ids.to(torch.int32),
        top,
    )
    return limited(found, wanted)


def _ordered(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and values of the `count` best, by value descending, id ascending; -1 = none."""
    if not count:
        none = values.new_empty((len(values), 0))
        return none.to(torch.int64), none
    ids = best(values, count)
    found = values.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -math.inf)
    order = found.sort(dim=1, descending=True, stable=True)  # ids ascend: equals stay in order
    return ids.gather(1, order.indices), order.values
