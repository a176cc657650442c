"""Markov drafting in Triton: a launch a place, and the bias never leaves the chip.

A program multiplies the embeddings of the tokens before with a tile of the vocabulary, adds the
base logits and the noise, and joins the best id of the tile to the best so far: the maximum of
whole numbers, which depends on no order. A last launch makes tokens and confidences. Noise is that
of the sampler up to rounding, which a guess may have. Knows nothing of the stages.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.random import philox_impl

from deepinfer.ops.markov_draft.reference import Drafts, Draw, MarkovWeights
from deepinfer.ops.noise import Purpose
from deepinfer.ops.portable import refuses_arch
from deepinfer.ops.sample.draft import Drawing

_ROWS = (128, 64)  # ids a program without and with noise
_TOKENS = ((16, 32, 64), (16, 32))  # requests a program; none of these changes bits
_WARPS = (8, 4)
_SETTLE_WARPS = 4
_BLOCK = 1024

_NO_ID: tl.constexpr = tl.constexpr(0x7FFFFFFF)
_UNIT: tl.constexpr = tl.constexpr(2.0**-32)
_SMALL: tl.constexpr = tl.constexpr(2.0**-5)
_LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _log2(x):
    """The device's own logarithm: absolute error 2^-22 from 1/2 to 2, relative elsewhere."""
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def near_noise(word):
    """-log2(-log2 u) of words uint32, u = (word | 1) / 2^32.

    It is Gumbel noise over ln 2, less a constant that no choice depends on.
    As 1 - u is known exactly, a few terms of the series give -log2 u where u is near 1.
    """
    odd = word | 1
    rest = (0 - odd).to(tl.float32) * _UNIT
    terms = tl.fma(rest, 0.2885390, 0.36067376)
    terms = tl.fma(rest, terms, 0.48089835)
    terms = tl.fma(rest, terms, 0.7213475)
    terms = tl.fma(rest, terms, _LOG2_E)
    size = tl.where(rest < _SMALL, rest * terms, -_log2(odd.to(tl.float32) * _UNIT))
    return -_log2(size)


@triton.jit
def _noise(
    token, here, tile, place, row_ptr, length_ptr, seed_ptr, completion_ptr,
    ROWS: tl.constexpr, PURPOSE: tl.constexpr,
):  # fmt: skip
    """Noise fp32 [tokens, ROWS] of the ids of a tile, as `near_noise` gives it."""
    row = tl.load(row_ptr + token, here, 0)
    position = tl.load(length_ptr + token, here, 0) + place
    seed, completion = tl.load(seed_ptr + row)[:, None], tl.load(completion_ptr + row)[:, None]
    tokens: tl.constexpr = token.shape[0]
    zero = tl.zeros([tokens, ROWS // 4], tl.uint32)
    group = zero + (tile * (ROWS // 4) + tl.arange(0, ROWS // 4)).to(tl.uint32)[None, :]
    first, second, third, fourth = philox_impl(
        group, zero + position.to(tl.uint32)[:, None], zero + PURPOSE,
        zero + completion.to(tl.uint32), zero + seed.to(tl.uint32),
        zero + (seed >> 32).to(tl.uint32),
    )  # fmt: skip
    words = tl.join(tl.join(first, third), tl.join(second, fourth))
    return near_noise(tl.reshape(words, (tokens, ROWS)))


@triton.jit
def _packed(score, ids):
    """A number that is larger for the better score, and for the lower id of equal scores."""
    bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    return (order << 32) | (_NO_ID - ids).to(tl.int64)


@triton.jit
def _before(token_ptr, best_ptr, request, here, requests, place, given):
    """The token before a place: a given one, or the best one of the place before."""
    token = tl.load(token_ptr + request, here & (given != 0), 0)
    best = tl.load(best_ptr + (place - 1) * requests + request, here & (given == 0), _NO_ID)
    return tl.where(given != 0, token, _NO_ID - (best & 0xFFFFFFFF))


@triton.jit(do_not_specialize=["requests", "place", "given"])
def _try(
    base_ptr, token_ptr, best_ptr, embed_ptr, head_ptr, logit_ptr,
    row_ptr, length_ptr, greedy_ptr, temperature_ptr, seed_ptr, completion_ptr,
    requests, place, given,
    COUNT: tl.constexpr, VOCAB: tl.constexpr, RANK: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, NOISE: tl.constexpr, KEEP: tl.constexpr,
    PURPOSE: tl.constexpr,
):  # fmt: skip
    """Of ROWS ids at one place each request's best score and its lowest id join the best so far.

    Only the tokens before come from the launch before; all else is there already.
    """
    gdc_launch_dependents()
    tile = tl.program_id(1)  # programs of the same ids lie side by side
    ids, rank = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, RANK)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    here = token < requests
    head = tl.load(head_ptr + ids[:, None] * RANK + rank[None, :], (ids < VOCAB)[:, None], 0.0)
    known = here[:, None] & (ids < VOCAB)[None, :]
    at = (token.to(tl.int64) * COUNT + place)[:, None] * VOCAB + ids[None, :]
    base = tl.load(base_ptr + at, known, 0.0)
    if NOISE:
        row = tl.load(row_ptr + token, here, 0)
        greedy, temperature = tl.load(greedy_ptr + row) != 0, tl.load(temperature_ptr + row)
        noise = _noise(
            token, here, tile, place, row_ptr, length_ptr, seed_ptr, completion_ptr, ROWS, PURPOSE
        )
    gdc_wait()
    previous = _before(token_ptr, best_ptr, token, here, requests, place, given)
    x = tl.load(embed_ptr + previous[None, :] * RANK + rank[:, None], here[None, :], 0.0)
    logit = base + tl.trans(tl.dot(head, x))
    if KEEP:
        tl.store(logit_ptr + at, logit, known)
    score = tl.where(known & (logit == logit), logit, float("-inf"))
    if NOISE:
        drawn = tl.fma(score, (_LOG2_E / temperature)[:, None], noise)
        score = tl.where(greedy[:, None], score, drawn)
    top = tl.max(score, 1)
    best = tl.min(tl.where(score == top[:, None], ids[None, :], _NO_ID), 1)
    tl.atomic_max(best_ptr + place * requests + token, _packed(top, best), here, sem="relaxed")


@triton.jit(do_not_specialize=["requests", "place", "given"])
def _settle(
    newest_ptr, best_ptr, token_ptr, hidden_ptr, embed_ptr, confidence_ptr, out_ptr,
    requests, place, given,
    COUNT: tl.constexpr, WIDTH: tl.constexpr, RANK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draft and confidence of one request at one of several places, from `place` on."""
    gdc_wait()
    gdc_launch_dependents()
    request, place = tl.program_id(0).to(tl.int64), place + tl.program_id(1)
    given = tl.where(place == 0, 1, given)
    previous = _before(newest_ptr, best_ptr, request, request >= 0, requests, place, given)
    total = tl.zeros([BLOCK], tl.float32)
    hidden_ptr += (request * COUNT + place) * WIDTH
    for low in range(0, WIDTH, BLOCK):
        column = low + tl.arange(0, BLOCK)
        x = tl.load(hidden_ptr + column, column < WIDTH, 0.0).to(tl.float32)
        total += x * tl.load(confidence_ptr + column, column < WIDTH, 0.0).to(tl.float32)
    rank = tl.arange(0, RANK)
    x = tl.load(embed_ptr + previous * RANK + rank).to(tl.float32)
    own = x * tl.load(confidence_ptr + WIDTH + rank).to(tl.float32)
    at = request * COUNT + place
    tl.store(out_ptr + at, tl.sum(total, 0) + tl.sum(own, 0))
    best = tl.load(best_ptr + place * requests + request)
    tl.store(token_ptr + at, _NO_ID - (best & 0xFFFFFFFF))


class Trial(NamedTuple):
    """One place of all requests.

    base: [requests, count, vocab] fp32. before: [requests], the tokens before, if `given`. best:
    [count, requests] int64, whose row `place` is to be filled. logits: like `base`, written if
    `kept`. values: six tensors that say how requests draw. noise: whether any may draw.
    """

    base: Tensor
    before: Tensor
    best: Tensor
    weights: MarkovWeights
    logits: Tensor
    values: tuple[Tensor, ...]
    place: int
    given: int
    noise: bool
    kept: bool
    purpose: int


def launch(t: Trial) -> None:
    """Fill `best` of a place, for any number of requests."""
    requests, count, vocab = t.base.shape
    rows, tokens = _ROWS[t.noise], _TOKENS[t.noise]
    wide = next((some for some in tokens if requests <= some), tokens[-1])
    _try[(triton.cdiv(requests, wide), triton.cdiv(vocab, rows))](
        t.base, t.before, t.best, t.weights.embed, t.weights.head, t.logits, *t.values,
        requests, t.place, t.given, count, vocab, t.weights.embed.shape[1], rows, wide,
        t.noise, t.kept, t.purpose,
        num_warps=_WARPS[t.noise], enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip


def markov_draft(
    base: Tensor,
    hidden: Tensor,
    newest: Tensor,
    weights: MarkovWeights,
    drawing: Draw | None = None,
    keep: bool = True,
) -> Drafts:
    """As the reference, but drafts are drawn from all ids; who wants the law draws them himself."""
    return drafted(base, hidden, newest, weights, drawing, keep, launch)


def drafted(
    base: Tensor,
    hidden: Tensor,
    newest: Tensor,
    weights: MarkovWeights,
    drawing: Draw | None,
    keep: bool,
    run: Callable[[Trial], None],
) -> Drafts:
    """`markov_draft` with something that fills `best` of a place."""
    requests, count, _ = base.shape
    known = drawing if isinstance(drawing, Drawing) and drawing.laws is None else None
    choose = None if drawing is None or known is not None else drawing(base)
    kept = keep or choose is not None
    logits = torch.empty_like(base) if kept else base.new_empty(0)
    confidence = torch.empty((requests, count), dtype=torch.float32, device=base.device)
    tokens = newest.new_empty((requests, count))
    if not requests:
        return Drafts(tokens, confidence, logits)
    # Overlaps with nothing: what is read without a wait is complete behind it.
    best = newest.new_full((count, requests), -(2**63))
    base, hidden, before, values = base.contiguous(), hidden.contiguous(), newest, (newest,) * 6
    if known is not None:
        state = known.state
        values = known.rows, known.length, state.greedy, state.temperature
        values = *values, state.seed, state.completion
    noise = known is not None and known.state.uses.noise
    purpose = int(Purpose.TARGET if known is None else known.purpose)

    def settle(place: int, places: int, given: int) -> None:
        _settle[(requests, places)](
            before, best, tokens, hidden, weights.embed, weights.confidence, confidence,
            requests, place, given, count, hidden.shape[2], weights.embed.shape[1], _BLOCK,
            num_warps=_SETTLE_WARPS, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip

    for place in range(count):
        given = int(place == 0 or choose is not None)
        run(Trial(base, before, best, weights, logits, values, place, given, noise, kept, purpose))
        if choose is not None:
            settle(place, 1, 1)
            before = choose(logits[:, place], place)
            tokens[:, place] = before
    if choose is None:
        settle(0, count, 0)
    return Drafts(tokens, confidence, logits)


def pack(weights: MarkovWeights) -> MarkovWeights:
    """The weights as they are.

    Raises:
        ValueError: they are not bf16.
    """
    for name, part in weights._asdict().items():
        if part.dtype != torch.bfloat16:
            raise ValueError(f"markov_draft: the kernel takes bf16, {name} is {part.dtype}")
    return MarkovWeights(*(part.contiguous() for part in weights))


def refuses(*, arch: str, quantised: bool, markov_rank: int = 0, **_facts: object) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    if why_not := refuses_arch(arch):
        return why_not
    if not quantised:
        return "takes bf16 weights only"
    if markov_rank & (markov_rank - 1) or (markov_rank and markov_rank < 16):
        return f"rank {markov_rank} is no power of two from 16 on"
    return None
