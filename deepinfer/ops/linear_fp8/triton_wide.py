"""FP8 linear layer on Hopper for many tokens: warps that copy beside warps that multiply.

A program works through tiles of 128 tokens and 128 rows of the weight, or of 64 and 256. Each of
two groups of four warps takes 64 tokens, as the left operand, and 128 rows; one warp keeps the
tensor memory copies going, also while a finished tile is stored. Barriers in shared memory say
which buffers are full and which are free. Segments of K are added by the program itself, in order,
so bits are those of triton.py. Knows nothing of what it projects.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.formats import Quantised
from deepinfer.ops.linear_fp8.plan import Tile
from deepinfer.ops.linear_fp8.triton_left import multiply, scaled

_PROGRAMS = 132  # multiprocessors of an H200; each holds one program
_REGISTERS = 240  # of a thread that multiplies: two products, their sum, and addresses
SWIZZLED = gl.NVMMASharedLayout(128, 8, 2)


@gluon.jit
def _multiply(
    half: gl.constexpr, xs, ws, totals, full, free, x_scale_ptr, w_scale_ptr, out_ptr, tokens,
    K: gl.constexpr, OUT: gl.constexpr, STAGES: gl.constexpr, SEGMENTS: gl.constexpr,
    PROGRAMS: gl.constexpr,
):  # fmt: skip
    """A half of every tile: 64 tokens of 128, or 128 rows of 256."""
    all_steps: gl.constexpr = K // 128
    many: gl.constexpr = xs.shape[1] // 64
    tall: gl.constexpr = ws.shape[1] // 128
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 32])
    none = gl.zeros([64, 128], gl.float32, mma)
    tiles = (tokens + xs.shape[1] - 1) // xs.shape[1]
    gdc_wait()
    turn = 0
    for item in range(gl.program_id(0), tiles * (OUT // ws.shape[1]), PROGRAMS):
        first_token = (item % tiles * many + half * (many - 1)) * 64
        block = item // tiles * tall + half * (tall - 1)
        part = none.reshape([64, 4, 32])
        thin: gl.constexpr = gl.SliceLayout(2, part.type.layout)
        m = first_token + gl.arange(0, 64, gl.SliceLayout(1, thin))
        s_ptr = x_scale_ptr + m * all_steps
        b = block * 4 + gl.arange(0, 4, gl.SliceLayout(0, thin))
        v_ptr = w_scale_ptr + b * all_steps
        w_next = gl.load(v_ptr)
        x_next = gl.load(s_ptr, m < tokens, 0)
        number = 0
        if SEGMENTS > 1:
            totals.index(half).store(none)
        for step in range(all_steps):
            slot = turn % STAGES
            both = x_next[:, None] + w_next[None, :]
            after = gl.minimum(step + 1, all_steps - 1)
            w_next = gl.load(v_ptr + after)
            x_next = gl.load(s_ptr + after, m < tokens, 0)
            mbarrier.wait(full.index(slot), turn // STAGES & 1)
            x = xs.index(slot).slice(64 * half * (many - 1), 64, 0)
            w = ws.index(slot).slice(128 * half * (tall - 1), 128, 0)
            part, fourth = multiply(part, x, w, both, none)
            mbarrier.arrive(free.index(slot), count=1)
            part = scaled(part, fourth, both, 3)
            turn += 1
            if SEGMENTS > 1:  # noqa: SIM102 - the outer test is a constant
                if step + 1 == (number + 1) * all_steps // SEGMENTS:
                    number += 1
                    flat = part.reshape([64, 128])
                    held = totals.index(half)
                    held.store(held.load(flat.type.layout) + flat)
                    part = none.reshape([64, 4, 32])
        layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
        if SEGMENTS > 1:
            value = totals.index(half).load(layout)
        else:
            value = gl.convert_layout(part.reshape([64, 128]), layout)
        token = gl.arange(0, 64, gl.SliceLayout(1, layout))
        row = gl.arange(0, 128, gl.SliceLayout(0, layout))
        tile_ptr = out_ptr + (first_token.to(gl.int64) * OUT + block * 128)
        used = (first_token + token < tokens)[:, None]
        gl.store(tile_ptr + ((token * OUT)[:, None] + row[None, :]), value.to(gl.bfloat16), used)


@gluon.jit
def _copy(
    xs, ws, full, free, x_tiles, w_tiles, tokens,
    K: gl.constexpr, OUT: gl.constexpr, STAGES: gl.constexpr, PROGRAMS: gl.constexpr,
):  # fmt: skip
    """Fill buffers, in the order in which they are used; weights before the kernel before ends."""
    all_steps: gl.constexpr = K // 128
    rows: gl.constexpr = ws.shape[1]
    tiles = (tokens + xs.shape[1] - 1) // xs.shape[1]
    turn = 0
    for item in range(gl.program_id(0), tiles * (OUT // rows), PROGRAMS):
        tile, block = item % tiles, item // tiles
        for step in range(all_steps):
            slot = turn % STAGES
            mbarrier.wait(free.index(slot), (turn // STAGES & 1) ^ 1)
            bar, w = full.index(slot), ws.index(slot)
            mbarrier.expect(bar, (rows + xs.shape[1]) * 128)
            for h in gl.static_range(rows // 64):
                row = ((block * (rows // 64) + h) * all_steps + step) * 64
                tma.async_copy_global_to_shared(w_tiles, [row, 0], bar, w.slice(64 * h, 64, 0))
            if turn == 0:
                gdc_wait()
            token = tile * xs.shape[1]
            tma.async_copy_global_to_shared(x_tiles, [token, step * 128], bar, xs.index(slot))
            turn += 1


@gluon.jit(do_not_specialize=["tokens"])
def _wide(
    x_tiles, w_tiles, x_scale_ptr, w_scale_ptr, out_ptr, tokens,
    K: gl.constexpr, OUT: gl.constexpr, STAGES: gl.constexpr, SEGMENTS: gl.constexpr,
    PROGRAMS: gl.constexpr, REGISTERS: gl.constexpr, ROWS: gl.constexpr, TOKENS: gl.constexpr,
):  # fmt: skip
    """out = x W^T; each program takes every PROGRAMS-th tile."""
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    ws = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, ROWS, 128], swizzled)
    xs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, TOKENS, 128], swizzled)
    plain: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    held: gl.constexpr = 64 if SEGMENTS > 1 else 1  # tokens whose sums of segments are kept
    totals = gl.allocate_shared_memory(gl.float32, [2, held, 128], plain)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=2)
    gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_multiply, (
                gl.constexpr(0), xs, ws, totals, full, free, x_scale_ptr, w_scale_ptr, out_ptr,
                tokens, K, OUT, STAGES, SEGMENTS, PROGRAMS,
            )),
            (_multiply, (
                gl.constexpr(1), xs, ws, totals, full, free, x_scale_ptr, w_scale_ptr, out_ptr,
                tokens, K, OUT, STAGES, SEGMENTS, PROGRAMS,
            )),
            (_copy, (xs, ws, full, free, x_tiles, w_tiles, tokens, K, OUT, STAGES, PROGRAMS)),
        ],
        [4, 1],
        [REGISTERS, 24],
    )  # fmt: skip


def wide(x: Quantised, codes: Tensor, scale: Tensor, out: Tensor, tile: Tile, count: int) -> None:
    """Fill `out` with the product.

    Args:
        x: [tokens, K], at least one token.
        codes: codes of a packed weight.
        scale: its scales.
        out: bf16 [tokens, out].
        tile: 128 rows and tokens, or 256 and 64; `warps` of one of the two groups that multiply.
        count: segments of K.
    """
    tokens, columns = x.codes.shape
    rows = scale.shape[0] * 32
    x_codes, w_codes = (t.view(torch.float8_e4m3fn) for t in (x.codes, codes.view(-1, 128)))
    items = -(-tokens // tile.tokens) * (rows // tile.rows)
    _wide[(min(_PROGRAMS, items),)](
        TensorDescriptor.from_tensor(x_codes, [tile.tokens, 128], SWIZZLED),
        TensorDescriptor.from_tensor(w_codes, [64, 128], SWIZZLED),
        x.scale.view(torch.int32), scale, out, tokens,
        columns, rows, tile.stages, count, _PROGRAMS, _REGISTERS, tile.rows, tile.tokens,
        num_warps=tile.warps, maxnreg=tile.registers, launch_pdl=True,
    )  # fmt: skip
