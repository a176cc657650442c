"""Routed experts on Hopper for many tokens: one warp copies, four decode and multiply.

A program works through tiles of 128 rows of the weight and up to 128 sorted rows of the input; two
programs share a multiprocessor, so that one stores while the other multiplies. Copies go by tensor
memory; barriers in shared memory say which buffers are full and which are free. Sums are scaled and
added as in triton_product.py, so that bits are the same. Knows nothing of how experts are chosen.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.experts.packing import PackedExperts, PackedMatrix
from deepinfer.ops.experts.plan import Tile, Tiles, most_tiles
from deepinfer.ops.experts.triton_activation import activate, store
from deepinfer.ops.experts.triton_pairs import combine, prepare, spread
from deepinfer.ops.experts.triton_product import decoded
from deepinfer.ops.formats import Quantised

_TURNS = 3  # up to so many tiles a program are launched one by one
_COMPARED = 4096  # so many (token, choice) pairs are sorted by comparing, more by counting
_NAMED = 32  # tiles that one program of `prepare` names
_COLUMNS = 1024  # of a row that one program of the small kernels takes
_WORDS = gl.constexpr(gl.BlockedLayout([1, 16], [4, 8], [4, 1], [1, 0]))
SWIZZLED = gl.NVMMASharedLayout(128, 8, 2)


@gluon.jit
def _operand(
    words, exponents, h: gl.constexpr, part: gl.constexpr, CHUNKS: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """One or two chunks of 64 columns of 64 rows of the weight, as FP8."""
    word = words.slice(h * 32 + part * 16, 16).load(_WORDS).reshape([128, 16])
    a = decoded(word, exponents, part, layout)
    if CHUNKS == 2:
        word = words.slice(h * 32 + 16, 16).load(_WORDS).reshape([128, 16])
        both = gl.join(a, decoded(word, exponents, 1, layout)).permute((0, 2, 1))
        a = gl.convert_layout(both.reshape([64, 128]), layout, assert_trivial=True)
    return a


@gluon.jit
def _added(total, sums, size):
    """total + sums * size, where it is written: it must not be postponed."""
    return gl.inline_asm_elementwise(
        "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", [sums, size, total], gl.float32, False, 1
    )


@gluon.jit
def _step(
    upper, lower, words, exponents, x, sizes, free, none, RANGE: gl.constexpr, layout: gl.constexpr
):  # fmt: skip
    """Add 128 columns to both halves of the rows, then free the buffer."""
    tokens: gl.constexpr = none.shape[1]
    chunks: gl.constexpr = RANGE // 64
    parts: gl.constexpr = 128 // RANGE
    space: gl.constexpr = x.shape[0]
    rows: gl.constexpr = gl.SliceLayout(1, layout)
    columns: gl.constexpr = gl.SliceLayout(0, none.type.layout)
    first = exponents.slice(0, 64).load(rows)
    second = exponents.slice(64, 64).load(rows)
    a = _operand(words, first, 0, 0, chunks, layout)
    for part in gl.static_range(parts):
        y = x.slice(0, tokens).slice(64 * part, 64 * chunks, 1).permute((1, 0))
        sums = warpgroup_mma(a, y, none, use_acc=False, is_async=True)
        sums = warpgroup_mma_wait(0, [sums])
        # Scales are loaded twice, and what is next decoded after the additions: there is no
        # register for them before, and spills find no room in the L1 cache.
        size = sizes.slice(part * space, tokens).load(columns)[None, :]
        upper = _added(upper, sums, size)
        b = _operand(words, second, 1, part, chunks, layout)
        sums = warpgroup_mma(b, y, none, use_acc=False, is_async=True)
        sums = warpgroup_mma_wait(0, [sums])
        size = sizes.slice(part * space, tokens).load(columns)[None, :]
        if part + 1 == parts:
            mbarrier.arrive(free, count=1)
        lower = _added(lower, sums, size)
        if part + 1 < parts:
            a = _operand(words, first, 0, part + 1, chunks, layout)
    return upper, lower


@gluon.jit
def _finish(
    upper, lower, base_ptr, order_ptr, share_ptr, out_ptr, size_ptr, stride, limit, first, rows,
    block, OUT: gl.constexpr, CHOICES: gl.constexpr,
):  # fmt: skip
    """From sums of 128 rows to their last store."""
    row = gl.arange(0, 64, gl.SliceLayout(1, upper.type.layout))
    base_ptr += block * 128
    upper = upper * gl.load(base_ptr + row)[:, None]
    lower = lower * gl.load(base_ptr + 64 + row)[:, None]
    if CHOICES:
        m = gl.arange(0, upper.shape[1], gl.SliceLayout(0, upper.type.layout))
        share = gl.load(share_ptr + gl.load(order_ptr + first + m, m < rows, 0), m < rows, 0.0)
        activate(
            upper, lower, share, out_ptr, size_ptr, stride, limit, first, rows, block, 2, OUT // 2
        )
    else:
        store(upper.to(gl.bfloat16), out_ptr, first, rows, 2 * block, OUT)
        store(lower.to(gl.bfloat16), out_ptr, first, rows, 2 * block + 1, OUT)


@gluon.jit
def _tile(
    words, exponents, xs, sizes, full, free, turn, base_ptr, order_ptr, share_ptr, out_ptr,
    size_ptr, stride, limit, first, rows, block,
    K: gl.constexpr, OUT: gl.constexpr, CHOICES: gl.constexpr, TOKENS: gl.constexpr,
    RANGE: gl.constexpr,
):  # fmt: skip
    """A tile from its first product to its last store."""
    stages: gl.constexpr = words.shape[0]
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TOKENS, 32])
    layout: gl.constexpr = gl.DotOperandLayout(0, mma, 4)
    none = gl.zeros([64, TOKENS], gl.float32, mma)
    upper, lower = none, none
    for step in range(K // 128):
        at = turn + step
        slot = at % stages
        mbarrier.wait(full.index(slot), at // stages & 1)
        upper, lower = _step(
            upper, lower, words.index(slot), exponents.index(slot), xs.index(slot),
            sizes.index(slot), free.index(slot), none, RANGE, layout,
        )  # fmt: skip
    _finish(
        upper, lower, base_ptr, order_ptr, share_ptr, out_ptr, size_ptr, stride, limit, first,
        rows, block, OUT, CHOICES,
    )  # fmt: skip


@gluon.jit
def _multiply(
    words, exponents, xs, sizes, full, free, base_ptr, order_ptr, expert_ptr, first_ptr, rows_ptr,
    share_ptr, out_ptr, size_ptr, stride, limit, tiles,
    K: gl.constexpr, OUT: gl.constexpr, CHOICES: gl.constexpr, TOKENS: gl.constexpr,
    LEAST: gl.constexpr, RANGE: gl.constexpr,
):  # fmt: skip
    """Every tile of the program; one with few rows multiplies LEAST tokens."""
    blocks: gl.constexpr = OUT // 128
    turn = 0
    for item in range(gl.program_id(0), tiles * blocks, gl.num_programs(0)):
        tile, block = item // blocks, item % blocks
        expert = gl.load(expert_ptr + tile)
        if expert >= 0:
            first, rows = gl.load(first_ptr + tile), gl.load(rows_ptr + tile)
            if LEAST < TOKENS and rows <= LEAST:
                _tile(
                    words, exponents, xs, sizes, full, free, turn, base_ptr + expert * OUT,
                    order_ptr, share_ptr, out_ptr, size_ptr, stride, limit, first, rows, block,
                    K, OUT, CHOICES, LEAST, RANGE,
                )  # fmt: skip
            else:
                _tile(
                    words, exponents, xs, sizes, full, free, turn, base_ptr + expert * OUT,
                    order_ptr, share_ptr, out_ptr, size_ptr, stride, limit, first, rows, block,
                    K, OUT, CHOICES, TOKENS, RANGE,
                )  # fmt: skip
            turn += K // 128


@gluon.jit
def _copy(
    words, exponents, xs, sizes, full, free, x_tiles, z_ptr, stride, w_tiles, s_ptr,
    expert_ptr, first_ptr, tiles,
    K: gl.constexpr, OUT: gl.constexpr, RANGE: gl.constexpr,
):  # fmt: skip
    """Fill buffers in the order in which they are used."""
    blocks: gl.constexpr = OUT // 128
    steps: gl.constexpr = K // 128
    stages: gl.constexpr = words.shape[0]
    space: gl.constexpr = xs.shape[1]
    parts: gl.constexpr = 128 // RANGE
    row = gl.arange(0, 128, gl.BlockedLayout([4], [32], [1], [0]))
    piece = gl.arange(0, parts * space, gl.BlockedLayout([1], [32], [1], [0]))
    s_ptr = s_ptr + (row // 64 * (steps * 64) + row % 64)
    z_ptr = z_ptr + piece // space * stride
    turn = 0
    for item in range(gl.program_id(0), tiles * blocks, gl.num_programs(0)):
        tile, block = item // blocks, item % blocks
        expert = gl.load(expert_ptr + tile)
        if expert >= 0:
            first = gl.load(first_ptr + tile)
            part = expert * (OUT // 64) + block * 2  # of 64 rows each
            s_from = s_ptr + part.to(gl.int64) * (steps * 64)
            z_from = z_ptr + gl.minimum(first + piece % space, stride - 1)
            for step in range(steps):
                slot = turn % stages
                bar = full.index(slot)
                mbarrier.wait(free.index(slot), (turn // stages & 1) ^ 1)
                mbarrier.expect(bar, 128 * 64 + space * 128)
                for b in gl.static_range(2):
                    at = ((part + b) * steps + step) * 32
                    place = words.index(slot).slice(b * 32, 32)
                    tma.async_copy_global_to_shared(w_tiles, [at, 0], bar, place)
                async_copy.async_copy_global_to_shared(exponents.index(slot), s_from + step * 64)
                if turn == 0:
                    gdc_wait()
                tma.async_copy_global_to_shared(x_tiles, [first, step * 128], bar, xs.index(slot))
                z_step = z_from + step * (parts * stride)
                async_copy.async_copy_global_to_shared(sizes.index(slot), z_step)
                async_copy.mbarrier_arrive(bar, increment_count=False)
                turn += 1
    if turn == 0:
        gdc_wait()  # whoever waits for this kernel waits for the one before, too


@gluon.jit(do_not_specialize=["stride", "tiles"])
def _many(
    x_tiles, z_ptr, stride, w_tiles, s_ptr, base_ptr, order_ptr, expert_ptr, first_ptr, rows_ptr,
    share_ptr, out_ptr, size_ptr, limit, tiles,
    K: gl.constexpr, OUT: gl.constexpr, CHOICES: gl.constexpr, TOKENS: gl.constexpr,
    LEAST: gl.constexpr, STAGES: gl.constexpr, RANGE: gl.constexpr,
):  # fmt: skip
    """Gate and up with the activation (`CHOICES` > 0), or down, y = bf16(h w2^T); sorted rows."""
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    # In this order what stores need fits beside them; in another one 4 KB more are taken.
    words = gl.allocate_shared_memory(gl.uint8, [STAGES, 64, 128], swizzled)
    xs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, TOKENS, 128], swizzled)
    exponents = gl.allocate_shared_memory(gl.int32, [STAGES, 128], line)
    sizes = gl.allocate_shared_memory(gl.float32, [STAGES, 128 // RANGE * TOKENS], line)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=33)  # the lanes of the warp that copies, and its tiles
        mbarrier.init(free.index(s), count=1)
    if CHOICES:
        gdc_wait()  # the next kernel may read the tile table as soon as it starts
    gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_multiply, (
                words, exponents, xs, sizes, full, free, base_ptr, order_ptr, expert_ptr,
                first_ptr, rows_ptr, share_ptr, out_ptr, size_ptr, stride, limit, tiles,
                K, OUT, CHOICES, TOKENS, LEAST, RANGE,
            )),
            (_copy, (
                words, exponents, xs, sizes, full, free, x_tiles, z_ptr, stride, w_tiles, s_ptr,
                expert_ptr, first_ptr, tiles, K, OUT, RANGE,
            )),
        ],
        [1],
        [24],
    )  # fmt: skip


class _Pairs(NamedTuple):
    """The (token, choice) pairs by expert; place of each, -1 for none; expert, first and rows of
    each tile; routing weights.
    """

    order: Tensor
    place: Tensor
    table: Tensor
    share: Tensor


def _multiply_all(
    source: Tensor, scale: Tensor, weight: PackedMatrix, pairs: _Pairs, out: Tensor,
    out_scale: Tensor, limit: float, tile: Tile, taken: int,
) -> None:  # fmt: skip
    """Fill `out` with one of both products; `taken`: choices for gate and up, 0 for down."""
    columns, size, count = source.shape[1], weight.codes.shape[1] * 64, pairs.table.shape[1]
    items, most = count * (size // tile.rows), tile.programs
    programs = items if items <= _TURNS * most else most
    _many[(programs,)](
        TensorDescriptor.from_tensor(source, [tile.tokens, 128], SWIZZLED), scale, scale.shape[1],
        TensorDescriptor.from_tensor(weight.codes.view(-1, 128), [32, 128], SWIZZLED),
        weight.exponents, weight.base, pairs.order, *pairs.table, pairs.share, out, out_scale,
        limit, count, columns, size, taken, tile.tokens, min(tile.tokens, 64), tile.stages,
        128 if taken else 64,
        num_warps=tile.warps, maxnreg=tile.registers, launch_pdl=True,
    )  # fmt: skip


def _middle(
    x: Quantised, topk_idx: Tensor, share: Tensor, weights: PackedExperts, limit: float, tile: Tile
) -> tuple[_Pairs, Tensor, Tensor]:
    """Sort the pairs, copy the input to all its places, gate and up: pairs, h and its scales."""
    tokens, hidden = x.codes.shape
    choices, experts = topk_idx.shape[1], weights.w13.codes.shape[0]
    entries, device = topk_idx.numel(), x.codes.device
    count, stride = most_tiles(entries, experts, tile.tokens), triton.cdiv(entries, 4) * 4
    order, place = torch.empty((2, entries), dtype=torch.int32, device=device)
    table = torch.empty((3, count), dtype=torch.int32, device=device)
    pairs = _Pairs(order, place, table, share.contiguous())
    codes = torch.empty((entries, hidden), dtype=torch.float8_e4m3fn, device=device)
    sizes = torch.empty((hidden // 128, stride), dtype=torch.float32, device=device)
    few = entries <= _COMPARED
    block = 16 if few else 64
    namers, sorters = triton.cdiv(count, _NAMED), triton.cdiv(entries, block)
    prepare[(namers + sorters,)](
        x.codes, x.scale, codes, sizes, topk_idx.contiguous(), order, place, *table,
        entries, namers, sorters, count, tokens, hidden, experts,
        triton.next_power_of_2(experts + 1), tile.tokens, _NAMED, block, 512 if few else 0,
        _COLUMNS, num_warps=4, launch_pdl=True,
    )  # fmt: skip
    spread[(tokens, triton.cdiv(hidden, _COLUMNS))](
        x.codes, x.scale, place, codes, sizes, stride, hidden, choices, _COLUMNS,
        num_warps=4, launch_pdl=True,
    )  # fmt: skip
    h = torch.empty((entries, weights.inner), dtype=torch.float8_e4m3fn, device=device)
    h_sizes = torch.empty((weights.inner // 64, stride), dtype=torch.float32, device=device)
    _multiply_all(codes, sizes, weights.w13, pairs, h, h_sizes, limit, tile, choices)
    return pairs, h, h_sizes


def many(
    x: Quantised, topk_idx: Tensor, topk_weights: Tensor, weights: PackedExperts, limit: float,
    tiles: Tiles,
) -> Tensor:  # fmt: skip
    """All launches; arguments and result as in `triton.experts`.

    Args:
        x: [tokens, d], at least one token.
        topk_idx: expert ids.
        topk_weights: routing weights.
        weights: packed.
        limit: config key `swiglu_limit`.
        tiles: of 128 rows and up to 128 tokens; `programs` fill the device.
    """
    tokens, hidden = x.codes.shape
    choices, device = topk_idx.shape[1], x.codes.device
    pairs, h, h_sizes = _middle(x, topk_idx, topk_weights, weights, limit, tiles.gate_up)
    y = torch.empty((tokens * choices, hidden), dtype=torch.bfloat16, device=device)
    _multiply_all(h, h_sizes, weights.w2, pairs, y, h_sizes, limit, tiles.down, 0)
    out = torch.empty((tokens, hidden), dtype=torch.float32, device=device)
    combine[(tokens, triton.cdiv(hidden, _COLUMNS))](
        y, pairs.place, out, hidden, choices, _COLUMNS, 0, 0, num_warps=4, launch_pdl=True
    )
    return out
