"""Sampling in Triton without a sort: the tokens and bits of the reference.

Every place in the order (value descending, id ascending) is one integer, and masses are integers,
so sums may run in any order. Noise is made only where an id could still win. Knows nothing of
rules: where rows have them, the reference's tensors come in.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.noise import Purpose
from deepinfer.ops.portable import refuses_arch
from deepinfer.ops.sample.reference import Sampled, joined
from deepinfer.ops.sample.reference import sample as by_reference
from deepinfer.ops.sample.rules import check_masks, constrain_in_parts, forced_ids
from deepinfer.ops.sample.state import NO_LOGPROBS, SamplerState
from deepinfer.ops.sample.triton_cut import BINS, enlist, highest, histogram, possible, settle
from deepinfer.ops.sample.triton_logprobs import reported
from deepinfer.ops.sample.triton_numbers import ID_BITS, at_most, gumbel_of, key_of, words_of
from deepinfer.step import FLAG_EMPTY, FLAG_NAN

_CHUNK = 4096  # ids a program
_BLOCK = 1024  # of them at a time
_ELEMENTS = 1 << 24  # of one [positions, vocab] intermediate
_WARPS = 4
_CUT_WARPS = 8

_NO_ID: tl.constexpr = tl.constexpr(0x7FFFFFFF)
_LEAST_NOISE: tl.constexpr = tl.constexpr(-3.2)  # noise is above
_HOPELESS: tl.constexpr = tl.constexpr(-25.5)  # even with the most noise behind the likeliest id


@triton.jit
def _best(
    raw_ptr, logit_ptr, mask_ptr, raw_high_ptr, high_ptr, id_ptr, broken_ptr,
    VOCAB: tl.constexpr, WORDS: tl.constexpr, MASKED: tl.constexpr, CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Of one chunk of a position: largest logits, raw and by the rules, the lowest id of the
    latter, whether a raw one is not finite."""
    gdc_wait()
    gdc_launch_dependents()
    at, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    raw = tl.load(raw_ptr + at * VOCAB + ids, ids < VOCAB, float("-inf"))
    finite = (tl.abs(raw) < float("inf")) | (ids >= VOCAB)
    tl.store(raw_high_ptr + at * CHUNKS + chunk, tl.max(raw, 0))
    value = possible(logit_ptr + at * VOCAB, mask_ptr + at * WORDS, ids, VOCAB, MASKED)
    high = tl.max(value, 0)
    tl.store(high_ptr + at * CHUNKS + chunk, high)
    tl.store(id_ptr + at * CHUNKS + chunk, tl.min(tl.where(value == high, ids, _NO_ID), 0))
    tl.store(broken_ptr + at * CHUNKS + chunk, tl.min(finite.to(tl.int32), 0) == 0)


@triton.jit
def _draw(
    logit_ptr, mask_ptr, high_ptr, end_ptr, score_ptr, id_ptr, row_ptr, position_ptr,
    greedy_ptr, temperature_ptr, seed_ptr, completion_ptr,
    VOCAB: tl.constexpr, WORDS: tl.constexpr, MASKED: tl.constexpr, CHUNKS: tl.constexpr,
    PADDED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, PURPOSE: tl.constexpr,
):  # fmt: skip
    """Of one chunk of a position: largest sum of value and noise, and its lowest id."""
    gdc_wait()
    gdc_launch_dependents()
    at, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(row_ptr + at)
    top, winner = _LEAST_NOISE + 0.0, _NO_ID + 0
    if tl.load(greedy_ptr + row) == 0:
        high, temperature = highest(high_ptr, at, CHUNKS, PADDED), tl.load(temperature_ptr + row)
        position, seed = tl.load(position_ptr + at), tl.load(seed_ptr + row)
        completion, end = tl.load(completion_ptr + row), tl.load(end_ptr + at)
        for start in range(chunk * CHUNK, chunk * CHUNK + CHUNK, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            value = possible(
                logit_ptr + at * VOCAB, mask_ptr + at * WORDS, ids, VOCAB, MASKED
            )  # fmt: skip
            scaled = tl.div_rn(value - high, temperature)
            kept = (scaled >= _HOPELESS) & (key_of(scaled, ids) <= end)
            if tl.max(kept.to(tl.int32), 0) > 0:
                group = start // 4 + tl.arange(0, BLOCK // 4)
                word = words_of(group, position, completion, seed, PURPOSE)
                reach = tl.where(kept, scaled + at_most(word), float("-inf"))
                peak = tl.max(reach, 0)
                while peak >= top:  # once or twice: the bound is close where noise is large
                    found = tl.min(tl.where(reach == peak, ids, _NO_ID), 0)
                    own = tl.sum(tl.where(ids == found, word.to(tl.int64), 0), 0)
                    score = tl.max(tl.where(ids == found, scaled, float("-inf")), 0)
                    score += gumbel_of(own)
                    better = (score > top) | ((score == top) & (found < winner))
                    winner = tl.where(better, found, winner)
                    top = tl.where(better, score, top)
                    reach = tl.where(ids == found, float("-inf"), reach)
                    peak = tl.max(reach, 0)
    tl.store(score_ptr + at * CHUNKS + chunk, top)
    tl.store(id_ptr + at * CHUNKS + chunk, winner)


@triton.jit
def _finish(
    high_ptr, best_ptr, broken_ptr, score_ptr, drawn_ptr, forced_ptr, row_ptr, greedy_ptr,
    token_ptr, flag_ptr,
    CHUNKS: tl.constexpr, PADDED: tl.constexpr, NOISE: tl.constexpr, FORCED: tl.constexpr,
    NAN: tl.constexpr, EMPTY: tl.constexpr,
):  # fmt: skip
    """Token and flag of one position."""
    gdc_wait()
    gdc_launch_dependents()
    at, chunk = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    there = chunk < CHUNKS
    chunk += at * CHUNKS
    value = tl.load(high_ptr + chunk, there, float("-inf"))
    ids = tl.load(best_ptr + chunk, there, _NO_ID)
    high = tl.max(value, 0)
    broken = tl.max(tl.load(broken_ptr + chunk, there, 0), 0) > 0
    if NOISE:
        greedy = tl.load(greedy_ptr + tl.load(row_ptr + at)) != 0
        value = tl.where(greedy, value, tl.load(score_ptr + chunk, there, float("-inf")))
        ids = tl.where(greedy, ids, tl.load(drawn_ptr + chunk, there, _NO_ID))
    token = tl.min(tl.where(value == tl.max(value, 0), ids, _NO_ID), 0).to(tl.int64)
    empty = high == float("-inf")
    if FORCED:
        forced = tl.load(forced_ptr + at)
        empty = empty & (forced < 0)
        token = tl.where(forced >= 0, forced, token)
    tl.store(flag_ptr + at, tl.where(broken, NAN, tl.where(empty, EMPTY, 0)))
    tl.store(token_ptr + at, tl.where(broken | empty, -1, token))


class _Position(NamedTuple):
    """What all launches of one call share: logits after the rules, masks, sizes."""

    logits: Tensor
    masks: Tensor
    vocab: int
    words: int
    masked: bool
    chunks: int
    padded: int


def sample(
    logits: Tensor,
    state: SamplerState,
    rows: Tensor,
    positions: Tensor,
    tokens: Tensor,
    masks: Tensor | None = None,
    keep_law: bool = False,
) -> Sampled:
    """As the reference; whoever asks for the law itself gets it from there.

    Biases, allowed ids, bad words, `min_tokens` and penalties are the reference's.
    """
    if keep_law or state.uses.processed:
        return by_reference(logits, state, rows, positions, tokens, masks, keep_law)
    if masks is not None:
        check_masks(masks, logits.shape[1])
    size = max(1, _ELEMENTS // logits.shape[1])
    return joined(
        [
            _some(
                logits[i : i + size].contiguous(),
                state,
                rows[i : i + size],
                positions[i : i + size],
                tokens,
                None if masks is None else masks[i : i + size].contiguous(),
            )
            for i in range(0, max(len(logits), 1), size)
        ]
    )


def _some(
    logits: Tensor,
    state: SamplerState,
    rows: Tensor,
    positions: Tensor,
    tokens: Tensor,
    masks: Tensor | None,
) -> Sampled:
    count, vocab = logits.shape
    uses, rules = state.uses, state.rules
    lists = rules.bias.most or rules.allowed.most or rules.bad_words.most
    ruled = logits
    if uses.penalties or uses.min_tokens or lists:
        ruled, masks = constrain_in_parts(logits, state, rows, positions, tokens, masks), None
    chunks = triton.cdiv(vocab, _CHUNK)
    given = _Position(
        ruled, rows if masks is None else masks, vocab, triton.cdiv(vocab, 32),
        masks is not None, chunks, triton.next_power_of_2(chunks),
    )  # fmt: skip
    high = torch.empty((count, chunks), dtype=torch.float32, device=logits.device)
    raw_high = torch.empty_like(high)
    best, broken, drawn = (torch.empty_like(high, dtype=torch.int32) for _ in range(3))
    chosen, flags = torch.empty_like(rows), torch.empty_like(rows, dtype=torch.int32)
    if not count:
        return Sampled(chosen, flags, None, None)
    _best[(count, chunks)](
        logits, ruled, given.masks, raw_high, high, best, broken,
        vocab, given.words, given.masked, chunks, _CHUNK, num_warps=_WARPS, launch_pdl=True,
    )  # fmt: skip
    score = high
    if uses.noise:
        score = _noisy(given, state, rows, positions, high, drawn)
    forced = rules.forced.most > 0
    _finish[(count,)](
        high, best, broken, score, drawn, forced_ids(state, rows, positions) if forced else rows,
        rows, state.greedy, chosen, flags,
        chunks, given.padded, uses.noise, forced, FLAG_NAN, FLAG_EMPTY,
        num_warps=1, launch_pdl=True,
    )  # fmt: skip
    logprobs = None
    if uses.logprobs >= 0:
        wanted = state.logprobs[rows].masked_fill(flags > 0, NO_LOGPROBS)
        logprobs = reported(logits, raw_high, chosen, state, rows, wanted, _CHUNK, _BLOCK)
    return Sampled(chosen, flags, logprobs, None)


def _noisy(
    given: _Position,
    state: SamplerState,
    rows: Tensor,
    positions: Tensor,
    high: Tensor,
    drawn: Tensor,
) -> Tensor:
    """Best sums of value and noise of all chunks, their ids into `drawn`."""
    sizes = given.vocab, given.words, given.masked, given.chunks, given.padded, _CHUNK, _BLOCK
    end = torch.empty_like(rows)
    if state.uses.truncation:
        _cut_off(given, state, rows, high, end)
    else:
        end.fill_((0x7F800000 << ID_BITS) - 1)  # every finite value
    score = torch.empty_like(high)
    _draw[(len(rows), given.chunks)](
        given.logits, given.masks, high, end, score, drawn, rows, positions, state.greedy,
        state.temperature, state.seed, state.completion,
        *sizes, int(Purpose.TARGET),
        num_warps=_WARPS, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
    return score


def _cut_off(
    given: _Position, state: SamplerState, rows: Tensor, high: Tensor, end: Tensor
) -> None:
    """Write the last places that min_p, top-k and top-p leave to `end`."""
    count, options = len(rows), {"enable_fp_fusion": False, "launch_pdl": True}
    bins = torch.zeros((2, count, BINS), dtype=torch.int64, device=rows.device)
    length = torch.zeros((count, 2), dtype=torch.int32, device=rows.device)
    listed = torch.empty((count, given.vocab), dtype=torch.int64, device=rows.device)
    total = torch.empty_like(end)
    cuts = state.log_min_p, state.top_k, state.top_p, bins[0].numel()
    wide = state.temperature, *cuts, given.vocab, given.words, given.masked, given.chunks
    wide = *wide, given.padded, _CHUNK, _BLOCK, BINS
    grid = count, given.chunks
    histogram[grid](
        given.logits, given.masks, high, bins, rows, state.greedy, *wide,
        num_warps=_WARPS, **options,
    )  # fmt: skip
    for stage in range(2):
        enlist[grid](
            given.logits, given.masks, high, bins, listed, length, end, total, rows, state.greedy,
            *wide, stage, num_warps=_WARPS, **options,
        )  # fmt: skip
        settle[(count,)](
            bins, listed, length, end, total, rows, state.greedy, *cuts, given.vocab, BINS, stage,
            num_warps=_CUT_WARPS, **options,
        )  # fmt: skip


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch)
