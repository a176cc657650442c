"""FP8 weights times bf16 rows on Hopper for many tokens: a warp that copies, others that decode.

A program works through tiles. Two groups of four warps take one or two blocks of 64 rows of the
weight each: they load codes straight into registers and decode them there, as the left operand; one
warp copies the input. Sums of segments of K wait in shared memory and are added in order. Bits are
those of triton_low.py. Knows nothing of what it projects.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.grouped_output.packing import PackedLow
from deepinfer.ops.grouped_output.plan import Tile
from deepinfer.ops.grouped_output.triton_codes import GROWN, weights

_PROGRAMS = 132  # multiprocessors of an H200; each holds one program
_REGISTERS = 240  # of a thread that multiplies: sums of up to two blocks, codes of the next step
_TILE = gl.NVMMASharedLayout(128, 16, 2)


@gluon.jit
def _codes(ptr):
    """Codes of a block and step: four chunks of 32 columns, as words: a byte takes a register."""
    return gl.load(ptr), gl.load(ptr + 512), gl.load(ptr + 1024), gl.load(ptr + 1536)


@gluon.jit
def _decoded(words, scale, c: gl.constexpr, layout: gl.constexpr):
    """Chunk c of a block, words [128, 4], as bf16 [64, 32]."""
    low = gl.join(words.to(gl.uint8), (words >> 8).to(gl.uint8))
    high = gl.join((words >> 16).to(gl.uint8), (words >> 24).to(gl.uint8))
    codes = gl.join(low, high).permute((0, 1, 3, 2)).reshape([128, 16])
    return weights(codes, scale >> (8 * c), 64, layout)


@gluon.jit
def _chunk(
    xs, upper, lower, u, d, upper_scale, lower_scale, next_ptr, c: gl.constexpr,
    BLOCK: gl.constexpr, BLOCKS: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Add the products of 32 columns; also returns the codes of that chunk of the next step.

    One block's product runs while the other one's codes are decoded.
    """
    tokens: gl.constexpr = xs.shape[0] // 2
    x = xs.slice(c // 2 * tokens, tokens).slice(c % 2 * 32, 32, 1).permute((1, 0))
    a = _decoded(u, upper_scale, c, layout)
    u = gl.load(next_ptr + c * 512)
    upper = warpgroup_mma(a, x, upper, is_async=True)
    if BLOCKS > 1:
        if c > 0:
            lower = warpgroup_mma_wait(1, [lower])
        a = _decoded(d, lower_scale, c, layout)
        d = gl.load(next_ptr + BLOCK + c * 512)
        lower = warpgroup_mma(a, x, lower, is_async=True)
    upper = warpgroup_mma_wait(1, [upper])
    return upper, lower, u, d


@gluon.jit
def _hold(held, part, number):
    """Add a segment's sums to those before it."""
    if number == 0:
        held.store(part + 0.0)  # as from zero: no negative zero
    else:
        held.store(held.load(part.type.layout) + part)


@gluon.jit
def _multiply(
    half: gl.constexpr, xs, totals, full, free, w_ptr, w_scale_ptr, out_ptr, tokens,
    K: gl.constexpr, OUT: gl.constexpr, BLOCKS: gl.constexpr, TOKENS: gl.constexpr,
    STAGES: gl.constexpr, SEGMENTS: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """The first or the second half of the rows of every tile."""
    steps: gl.constexpr = K // 128
    segment: gl.constexpr = steps // SEGMENTS
    block: gl.constexpr = 16 * K  # words of 64 rows
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    words: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [4, 1], [1, 0])
    piece = gl.arange(0, 128, gl.SliceLayout(1, words))
    word = gl.arange(0, 4, gl.SliceLayout(0, words))
    offset = (piece * 4)[:, None] + word[None, :]
    r = gl.arange(0, 64, gl.SliceLayout(1, a_layout))
    tiles = (tokens + TOKENS - 1) // TOKENS
    zeros = gl.zeros([64, TOKENS], gl.float32, mma)
    turn = 0
    for item in range(gl.program_id(0), tiles * (OUT // (128 * BLOCKS)), PROGRAMS):
        tile, first = item % tiles, (item // tiles * 2 + half) * (64 * BLOCKS)
        codes_ptr = w_ptr + first.to(gl.int64) * (K // 4) + offset
        scales_ptr = w_scale_ptr + (first + r) // 32 * steps
        below: gl.constexpr = 2 * steps if BLOCKS > 1 else 0
        upper_next, lower_next = gl.load(scales_ptr), gl.load(scales_ptr + below)
        u0, u1, u2, u3 = _codes(codes_ptr)
        d0, d1, d2, d3 = u0, u1, u2, u3
        if BLOCKS > 1:
            d0, d1, d2, d3 = _codes(codes_ptr + block)
        if turn == 0:
            gdc_wait()
        for number in range(SEGMENTS):
            upper, lower = zeros, zeros
            for step in range(number * segment, (number + 1) * segment):
                slot = turn % STAGES
                s, t = upper_next, lower_next
                after = gl.minimum(step + 1, steps - 1)
                upper_next = gl.load(scales_ptr + after)
                if BLOCKS > 1:
                    lower_next = gl.load(scales_ptr + below + after)
                to = codes_ptr + after * 2048
                mbarrier.wait(full.index(slot), turn // STAGES & 1)
                x = xs.index(slot)
                upper, lower, u0, d0 = _chunk(
                    x, upper, lower, u0, d0, s, t, to, 0, block, BLOCKS, a_layout
                )
                upper, lower, u1, d1 = _chunk(
                    x, upper, lower, u1, d1, s, t, to, 1, block, BLOCKS, a_layout
                )
                upper, lower, u2, d2 = _chunk(
                    x, upper, lower, u2, d2, s, t, to, 2, block, BLOCKS, a_layout
                )
                upper, lower, u3, d3 = _chunk(
                    x, upper, lower, u3, d3, s, t, to, 3, block, BLOCKS, a_layout
                )
                if BLOCKS > 1:
                    lower = warpgroup_mma_wait(0, [lower])
                else:
                    upper = warpgroup_mma_wait(0, [upper])
                mbarrier.arrive(free.index(slot), count=1)
                turn += 1
            _hold(totals.index(BLOCKS * half), upper, number)
            if BLOCKS > 1:
                _hold(totals.index(BLOCKS * half + 1), lower, number)
        layout: gl.constexpr = gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])
        token = tile * TOKENS + gl.arange(0, TOKENS, gl.SliceLayout(0, layout))
        inside = (token < tokens)[None, :]
        for h in gl.static_range(BLOCKS):
            row = first + 64 * h + gl.arange(0, 64, gl.SliceLayout(1, layout))
            value = (totals.index(BLOCKS * half + h).load(layout) * GROWN).to(gl.bfloat16)
            at = (token.to(gl.int64) * OUT)[None, :] + row[:, None]
            gl.store(out_ptr + at, value, inside)


@gluon.jit
def _copy(
    xs, full, free, x_tiles, tokens, K: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr,
    BLOCKS: gl.constexpr, TOKENS: gl.constexpr, STAGES: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Fill buffers with the input, in the order in which they are used."""
    steps: gl.constexpr = K // 128
    rows: gl.constexpr = 128 * BLOCKS
    tiles = (tokens + TOKENS - 1) // TOKENS
    gdc_wait()
    turn = 0
    for item in range(gl.program_id(0), tiles * (OUT // rows), PROGRAMS):
        tile, column = item % tiles, item // tiles * rows // GROUP * K
        for step in range(steps):
            slot = turn % STAGES
            bar = full.index(slot)
            mbarrier.wait(free.index(slot), (turn // STAGES & 1) ^ 1)
            mbarrier.expect(bar, 256 * TOKENS)
            for h in gl.static_range(2):
                at = [tile * TOKENS, column + step * 128 + h * 64]
                place = xs.index(slot).slice(h * TOKENS, TOKENS)
                tma.async_copy_global_to_shared(x_tiles, at, bar, place)
            turn += 1


@gluon.jit(do_not_specialize=["tokens"])
def _low_wide(
    x_tiles, w_ptr, w_scale_ptr, out_ptr, tokens,
    K: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr, BLOCKS: gl.constexpr,
    TOKENS: gl.constexpr, STAGES: gl.constexpr, SEGMENTS: gl.constexpr, PROGRAMS: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """out = x W^T; each program takes every PROGRAMS-th tile.

    Each GROUP rows of the weight have K columns of the input of their own.
    """
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    plain: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [0, 1])
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 2 * TOKENS, 64], swizzled)
    totals = gl.allocate_shared_memory(gl.float32, [2 * BLOCKS, 64, TOKENS], plain)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=2)
    gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_multiply, (
                gl.constexpr(0), xs, totals, full, free, w_ptr, w_scale_ptr, out_ptr, tokens,
                K, OUT, BLOCKS, TOKENS, STAGES, SEGMENTS, PROGRAMS,
            )),
            (_multiply, (
                gl.constexpr(1), xs, totals, full, free, w_ptr, w_scale_ptr, out_ptr, tokens,
                K, OUT, BLOCKS, TOKENS, STAGES, SEGMENTS, PROGRAMS,
            )),
            (_copy, (
                xs, full, free, x_tiles, tokens, K, OUT, GROUP, BLOCKS, TOKENS, STAGES, PROGRAMS,
            )),
        ],
        [4, 1],
        [REGISTERS, 24],
    )  # fmt: skip


def wide(x: Tensor, weight: PackedLow, out: Tensor, groups: int, tile: Tile, count: int) -> None:
    """Fill `out` with the product of whole sums.

    Args:
        x: [tokens, groups * K] bf16, contiguous, at least one token.
        weight: packed.
        out: bf16 [tokens, groups * rank].
        groups: parts of the weight with columns of their own.
        tile: 128 or 256 rows, 128 tokens; `warps` of one of the two groups that multiply.
        count: segments of K.
    """
    (tokens, width), rows = x.shape, out.shape[1]
    items = -(-tokens // tile.tokens) * (rows // tile.rows)
    _low_wide[(min(_PROGRAMS, items),)](
        TensorDescriptor.from_tensor(x, [tile.tokens, 64], _TILE),
        weight.codes.view(torch.int32), weight.scale, out, tokens,
        width // groups, rows, rows // groups, tile.rows // 128, tile.tokens, tile.stages, count,
        _PROGRAMS, _REGISTERS,
        num_warps=tile.warps, maxnreg=168, launch_pdl=True,
    )  # fmt: skip
