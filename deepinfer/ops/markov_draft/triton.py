"""Markov drafting in Triton: two launches a place, and the bias never leaves the chip.

The first one multiplies the embeddings of the tokens before with a tile of the vocabulary, adds the
base logits and the noise, and keeps the best id of the tile; the second one takes the best tile and
the confidence. Noise is that of the sampler up to rounding, which a guess may have. Knows nothing
of the stages.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.random import philox_impl

from deepinfer.ops.markov_draft.reference import Drafts, Draw, MarkovWeights
from deepinfer.ops.noise import Purpose
from deepinfer.ops.sample.draft import Drawing

_ROWS = (128, 64)  # ids a program without and with noise
_TOKENS = ((16, 32, 64), (16, 32))  # requests a program; none of these changes bits
_WARPS = (8, 4)
_SETTLE_WARPS = 4
_BLOCK = 1024

_NO_ID: tl.constexpr = tl.constexpr(0x7FFFFFFF)
_UNIT: tl.constexpr = tl.constexpr(2.0**-32)
_SMALL: tl.constexpr = tl.constexpr(2.0**-6)


@triton.jit
def near_gumbel(word):
    """Gumbel noise -ln(-ln u) of words uint32, u = (word | 1) / 2^32, in plain fp32.

    As 1 - u is known exactly, a few terms of the series give -ln u where u is near 1.
    """
    odd = word | 1
    rest = ((odd ^ 0xFFFFFFFF) + 1).to(tl.float32) * _UNIT
    small = rest * (1 + rest * (0.5 + rest * (0.33333334 + rest * 0.25)))
    return -tl.log(tl.where(rest < _SMALL, small, -tl.log(odd.to(tl.float32) * _UNIT)))


@triton.jit
def _noise(
    token, here, tile, place, row_ptr, length_ptr, seed_ptr, completion_ptr,
    ROWS: tl.constexpr, PURPOSE: tl.constexpr,
):  # fmt: skip
    """Noise fp32 [tokens, ROWS] of the ids of a tile."""
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
    return near_gumbel(tl.reshape(words, (tokens, ROWS)))


@triton.jit(do_not_specialize=["requests", "place"])
def _try(
    base_ptr, token_ptr, embed_ptr, head_ptr, score_ptr, id_ptr, logit_ptr,
    row_ptr, length_ptr, greedy_ptr, temperature_ptr, seed_ptr, completion_ptr,
    requests, place,
    COUNT: tl.constexpr, VOCAB: tl.constexpr, RANK: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr, TOKENS: tl.constexpr, NOISE: tl.constexpr, KEEP: tl.constexpr,
    PURPOSE: tl.constexpr,
):  # fmt: skip
    """Of ROWS ids at one place: the best score of each request, and its lowest id.

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
    previous = tl.load(token_ptr + place * requests + token, here, 0)
    x = tl.load(embed_ptr + previous[None, :] * RANK + rank[:, None], here[None, :], 0.0)
    logit = base + tl.trans(tl.dot(head, x))
    if KEEP:
        tl.store(logit_ptr + at, logit, known)
    score = tl.where(known & (logit == logit), logit, float("-inf"))
    if NOISE:
        score = tl.where(greedy[:, None], score, score / temperature[:, None] + noise)
    top = tl.max(score, 1)
    best = tl.min(tl.where(score == top[:, None], ids[None, :], _NO_ID), 1)
    tl.store(score_ptr + token * TILES + tile, top, here)
    tl.store(id_ptr + token * TILES + tile, best, here)


@triton.jit(do_not_specialize=["requests", "place"])
def _settle(
    score_ptr, id_ptr, token_ptr, hidden_ptr, embed_ptr, confidence_ptr, out_ptr,
    requests, place,
    COUNT: tl.constexpr, WIDTH: tl.constexpr, RANK: tl.constexpr, TILES: tl.constexpr,
    PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Draft and confidence of one request at one place."""
    gdc_wait()
    gdc_launch_dependents()
    request, tile = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    score = tl.load(score_ptr + request * TILES + tile, tile < TILES, float("-inf"))
    ids = tl.load(id_ptr + request * TILES + tile, tile < TILES, _NO_ID)
    best = tl.min(tl.where(score == tl.max(score, 0), ids, _NO_ID), 0).to(tl.int64)
    tl.store(token_ptr + (place + 1) * requests + request, best)
    total = tl.zeros([BLOCK], tl.float32)
    hidden_ptr += (request * COUNT + place) * WIDTH
    for low in range(0, WIDTH, BLOCK):
        column = low + tl.arange(0, BLOCK)
        x = tl.load(hidden_ptr + column, column < WIDTH, 0.0).to(tl.float32)
        total += x * tl.load(confidence_ptr + column, column < WIDTH, 0.0).to(tl.float32)
    rank, previous = tl.arange(0, RANK), tl.load(token_ptr + place * requests + request)
    x = tl.load(embed_ptr + previous * RANK + rank).to(tl.float32)
    own = x * tl.load(confidence_ptr + WIDTH + rank).to(tl.float32)
    tl.store(out_ptr + request * COUNT + place, tl.sum(total, 0) + tl.sum(own, 0))


def markov_draft(
    base: Tensor,
    hidden: Tensor,
    newest: Tensor,
    weights: MarkovWeights,
    drawing: Draw | None = None,
    keep: bool = True,
) -> Drafts:
    """As the reference, but drafts are drawn from all ids; who wants the law draws them himself."""
    requests, count, vocab = base.shape
    known = drawing if isinstance(drawing, Drawing) and drawing.laws is None else None
    choose = None if drawing is None or known is not None else drawing(base)
    tokens = newest.new_empty((1 + count, requests))
    tokens[0] = newest  # overlaps with nothing: what is read without a wait is complete behind it
    kept = keep or choose is not None
    logits = torch.empty_like(base) if kept else base.new_empty(0)
    confidence = torch.empty((requests, count), dtype=torch.float32, device=base.device)
    if not requests:
        return Drafts(tokens[1:].T, confidence, logits)
    noise = known is not None and known.state.uses.noise
    rows, rank, width = _ROWS[noise], weights.embed.shape[1], hidden.shape[2]
    tiles = triton.cdiv(vocab, rows)
    score = torch.empty((requests, tiles), dtype=torch.float32, device=base.device)
    ids = torch.empty_like(score, dtype=torch.int32)
    base, hidden = base.contiguous(), hidden.contiguous()
    wide = next((t for t in _TOKENS[noise] if requests <= t), _TOKENS[noise][-1])
    values = (newest,) * 6
    if known is not None:
        state = known.state
        values = known.rows, known.length, state.greedy, state.temperature
        values = *values, state.seed, state.completion
    for place in range(count):
        _try[(triton.cdiv(requests, wide), tiles)](
            base, tokens, weights.embed, weights.head, score, ids, logits, *values,
            requests, place, count, vocab, rank, tiles, rows, wide, noise, kept,
            int(Purpose.TARGET if known is None else known.purpose),
            num_warps=_WARPS[noise], enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
        _settle[(requests,)](
            score, ids, tokens, hidden, weights.embed, weights.confidence, confidence,
            requests, place, count, width, rank, tiles, triton.next_power_of_2(tiles), _BLOCK,
            num_warps=_SETTLE_WARPS, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
        if choose is not None:
            tokens[place + 1] = choose(logits[:, place], place)
    return Drafts(tokens[1:].T, confidence, logits)


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
    if arch not in ("sm90", "sm100"):
        return f"written for sm90 and sm100, not {arch}"
    if not quantised:
        return "takes bf16 weights only"
    if markov_rank & (markov_rank - 1) or (markov_rank and markov_rank < 16):
        return f"rank {markov_rank} is no power of two from 16 on"
    return None
