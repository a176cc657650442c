"""Markov drafting on Hopper: for many requests, programs that go through tiles of the vocabulary.

A program keeps the embeddings of the tokens before of 64 requests, the left operand, in shared
memory and fetches the next tile of the head while it makes the noise of this one; a thread has four
neighbouring ids of two requests, as one call of the generator gives their noise. All formulas and
their order are those of triton.py, which serves few requests and whoever keeps logits: equal bits.
Knows nothing of the stages.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.markov_draft import triton as portable
from deepinfer.ops.markov_draft.reference import Drafts, Draw, MarkovWeights
from deepinfer.ops.markov_draft.triton import Trial, drafted, launch

_MANY = 32  # requests from which these programs are faster
_PROGRAMS = 264  # two a multiprocessor of an H200
_IDS = 64  # of a tile
_MOST_RANK = 512  # two tiles and the embeddings fit into shared memory
_NO_ID = gl.constexpr(0x7FFFFFFF)
_UNIT = gl.constexpr(2.0**-32)
_SMALL = gl.constexpr(2.0**-5)
_LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit
def _log2(x):
    """As in triton.py."""
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def _near_noise(word):
    """As in triton.py."""
    odd = word | 1
    rest = (0 - odd).to(gl.float32) * _UNIT
    terms = gl.fma(rest, 0.2885390, 0.36067376)
    terms = gl.fma(rest, terms, 0.48089835)
    terms = gl.fma(rest, terms, 0.7213475)
    terms = gl.fma(rest, terms, _LOG2_E)
    size = gl.where(rest < _SMALL, rest * terms, -_log2(odd.to(gl.float32) * _UNIT))
    return -_log2(size)


@gluon.jit
def _philox(first, second, third, fourth, low, high):
    """Four words of Philox 4x32 with ten rounds, of a counter of four words and a key of two."""
    for _ in gl.static_range(10):
        one, two = gl.umulhi(first, 0xD2511F53), gl.umulhi(third, 0xCD9E8D57)
        next_second, next_fourth = third * 0xCD9E8D57, first * 0xD2511F53
        first, third = two ^ second ^ low, one ^ fourth ^ high
        second, fourth = next_second, next_fourth
        low, high = low + 0x9E3779B9, high + 0xBB67AE85
    return first, second, third, fourth


@gluon.jit
def _fetch(ws, head_ptr, tile, slot, VOCAB: gl.constexpr, RANK: gl.constexpr):
    """Start to copy the rows of a tile of ids.

    In every 16, id 4 q + 2 h + b goes to place 8 h + 2 q + b: so a thread gets four neighbours.
    """
    ids: gl.constexpr = ws.shape[1]
    chunks: gl.constexpr = RANK // 64
    copy: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    n = gl.arange(0, ids, gl.SliceLayout(1, copy))
    row = tile * ids + (n // 16 * 16 + n % 8 // 2 * 4 + n // 8 % 2 * 2 + n % 2)
    at = head_ptr + ((row * RANK)[:, None] + gl.arange(0, 64, gl.SliceLayout(0, copy))[None, :])
    for c in gl.static_range(chunks):
        to = ws.index(slot * chunks + c)
        if VOCAB % ids:
            async_copy.async_copy_global_to_shared(to, at + 64 * c, mask=(row < VOCAB)[:, None])
        else:
            async_copy.async_copy_global_to_shared(to, at + 64 * c)
    async_copy.commit_group()


@gluon.jit
def _logits(base_ptr, tile, own, VOCAB: gl.constexpr, IDS: gl.constexpr):
    """Base logits of a tile."""
    if VOCAB % IDS:
        return gl.load(base_ptr + tile * IDS, tile * IDS + own < VOCAB, float("-inf"))
    return gl.load(base_ptr + tile * IDS)


@gluon.jit
def _by_four(total):
    """Sums [64, ids] as the product leaves them -> [64, ids / 4, 4] in the order of the ids."""
    count: gl.constexpr = total.shape[1]
    places = total.reshape([64, count // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4))
    return places.reshape([64, count // 4, 4])


@gluon.jit(do_not_specialize=["requests", "place", "given"])
def _try(
    base_ptr, token_ptr, best_ptr, embed_ptr, head_ptr,
    row_ptr, length_ptr, greedy_ptr, temperature_ptr, seed_ptr, completion_ptr,
    requests, place, given,
    COUNT: gl.constexpr, VOCAB: gl.constexpr, RANK: gl.constexpr, IDS: gl.constexpr,
    NOISE: gl.constexpr, PURPOSE: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Every PROGRAMS-th tile of 64 requests at one place; their best ids join the best so far.

    Only the tokens before come from the launch before; all else is there already.
    """
    chunks: gl.constexpr = RANK // 64
    tiles: gl.constexpr = (VOCAB + IDS - 1) // IDS
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, IDS, 16])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    ws = gl.allocate_shared_memory(gl.bfloat16, [2 * chunks, IDS, 64], swizzled)
    xs = gl.allocate_shared_memory(gl.bfloat16, [chunks, 64, 64], swizzled)
    none = gl.zeros([64, IDS], gl.float32, mma)
    cube: gl.constexpr = _by_four(none).type.layout
    flat: gl.constexpr = gl.SliceLayout(2, cube)
    rows: gl.constexpr = gl.SliceLayout(1, flat)
    gdc_launch_dependents()
    start = gl.program_id(0)
    _fetch(ws, head_ptr, start, 0, VOCAB, RANK)
    _fetch(ws, head_ptr, gl.minimum(start + PROGRAMS, tiles - 1), 1, VOCAB, RANK)
    token = gl.program_id(1) * 64 + gl.arange(0, 64, rows)
    here = token < requests
    token = gl.minimum(token, requests - 1)
    four = gl.arange(0, IDS // 4, gl.SliceLayout(0, flat))
    own = 4 * four[None, :, None]
    own += gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, cube)))[None, None, :]
    base_ptr = base_ptr + (token.to(gl.int64) * COUNT + place)[:, None, None] * VOCAB + own
    base = _logits(base_ptr, start, own, VOCAB, IDS)
    if NOISE:
        row = gl.load(row_ptr + token)
        position = gl.load(length_ptr + token) + place
        greedy = (gl.load(greedy_ptr + row) != 0)[:, None, None]
        factor = (_LOG2_E / gl.load(temperature_ptr + row))[:, None, None]
        seed = gl.load(seed_ptr + row)[:, None]
        zero = gl.zeros([64, IDS // 4], gl.uint32, flat)
        second, third = zero + position.to(gl.uint32)[:, None], zero + PURPOSE
        fourth = zero + gl.load(completion_ptr + row)[:, None].to(gl.uint32)
        low, high = zero + seed.to(gl.uint32), zero + (seed >> 32).to(gl.uint32)
    gdc_wait()
    copy: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    t = gl.minimum(gl.program_id(1) * 64 + gl.arange(0, 64, gl.SliceLayout(1, copy)), requests - 1)
    if given:
        previous = gl.load(token_ptr + t)
    else:
        previous = _NO_ID - (gl.load(best_ptr + (place - 1) * requests + t) & 0xFFFFFFFF)
    column = gl.arange(0, 64, gl.SliceLayout(0, copy))
    x_ptr = embed_ptr + ((previous * RANK)[:, None] + column[None, :])
    for c in gl.static_range(chunks):
        async_copy.async_copy_global_to_shared(xs.index(c), x_ptr + 64 * c)
    async_copy.commit_group()
    async_copy.wait_group(0)
    top = gl.full([64], float("-inf"), gl.float32, rows)
    best = gl.full([64], _NO_ID, gl.int32, rows)
    turn = 0
    for tile in range(start, tiles, PROGRAMS):
        slot = turn % 2
        if NOISE:
            group = zero + (tile * (IDS // 4) + four).to(gl.uint32)[None, :]
            a, b, c, d = _philox(group, second, third, fourth, low, high)
            words = gl.join(gl.join(a, c), gl.join(b, d)).reshape([64, IDS // 4, 4])
            noise = _near_noise(gl.convert_layout(words, cube))
        async_copy.wait_group(1)
        fence_async_shared()
        gl.thread_barrier()
        total = none
        for c in gl.static_range(chunks):
            w = ws.index(slot * chunks + c).permute((1, 0))
            total = warpgroup_mma(xs.index(c), w, total, use_acc=c > 0, is_async=True)
        after = gl.minimum(tile + PROGRAMS, tiles - 1)
        following = _logits(base_ptr, after, own, VOCAB, IDS)
        total = warpgroup_mma_wait(0, [total])
        gl.thread_barrier()
        _fetch(ws, head_ptr, gl.minimum(tile + 2 * PROGRAMS, tiles - 1), slot, VOCAB, RANK)
        score = base + _by_four(total)
        score = gl.where(score == score, score, float("-inf"))
        if NOISE:
            score = gl.where(greedy, score, gl.fma(score, factor, noise))
        here_top = gl.max(gl.max(score, 2), 1)
        ids = gl.where(score == here_top[:, None, None], tile * IDS + own, _NO_ID)
        better = (here_top > top) | (turn == 0)  # of equal ones the first tile has the lowest id
        best = gl.where(better, gl.min(gl.min(ids, 2), 1), best)
        top = gl.where(better, here_top, top)
        base = following
        turn += 1  # noqa: SIM113 - the loop is compiled
    async_copy.wait_group(0)  # a program must not end before its copies
    bits = gl.where(top == 0, 0.0, top).to(gl.int32, bitcast=True)
    order = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(gl.int64)
    packed = (order << 32) | (_NO_ID - best).to(gl.int64)
    gl.atomic_max(best_ptr + place * requests + token, packed, here, sem="relaxed")


def markov_draft(
    base: Tensor,
    hidden: Tensor,
    newest: Tensor,
    weights: MarkovWeights,
    drawing: Draw | None = None,
    keep: bool = True,
) -> Drafts:
    """As the reference, but drafts are drawn from all ids; who wants the law draws them himself."""
    few = len(base) < _MANY
    return drafted(base, hidden, newest, weights, drawing, keep, launch if few else launch_many)


def launch_many(t: Trial, programs: int = _PROGRAMS) -> None:
    """Fill `best` of a place; whoever keeps logits gets the other kernel."""
    if t.kept:
        launch(t)
        return
    requests, count, vocab = t.base.shape
    blocks = triton.cdiv(requests, 64)
    each = min(max(1, programs // blocks), triton.cdiv(vocab, _IDS))
    _try[(each, blocks)](
        t.base, t.before, t.best, t.weights.embed, t.weights.head, *t.values,
        requests, t.place, t.given, count, vocab, t.weights.embed.shape[1], _IDS,
        t.noise, t.purpose, each,
        num_warps=4, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip


def refuses(*, arch: str, markov_rank: int = 0, **facts: object) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    if arch != "sm90":
        return f"written for sm90, not {arch}"
    if markov_rank % 64 or markov_rank > _MOST_RANK:
        return f"rank {markov_rank} is no multiple of 64 up to {_MOST_RANK}"
    return portable.refuses(arch=arch, markov_rank=markov_rank, quantised=bool(facts["quantised"]))
