"""FP8 linear layer on Hopper with 64 tokens as the left operand, padded to 64.

The products, their scaling and the order of sums are those of triton.py, hence the bits; only who
holds which sum differs. A thread has two tokens and many rows of the weight, whose scale belongs to
32 rows, so it makes one scale for eight sums. Knows nothing of what it projects.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.formats import Quantised
from deepinfer.ops.linear_fp8.plan import Tile


@gluon.jit
def start_group(left, right, none, group: gl.constexpr):
    """Start the product of one group of 32 columns of two tiles [*, 128]."""
    left, right = left.slice(32 * group, 32, 1), right.slice(32 * group, 32, 1)
    return warpgroup_mma(left, right.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def scaled(total, product, scales, group: gl.constexpr):
    """total + product * scale, where a word of `scales` holds the exponents of four groups."""
    bits = scales >> 1 if group == 3 else scales << (23 - 8 * group)
    size = (bits & 0x7F800000).to(gl.float32, bitcast=True)
    return total + product.reshape(total.shape) * gl.expand_dims(size, 2)


@gluon.jit
def multiply(part, x, w, scales, none):
    """Add the products of three groups of a step to `part`; also returns that of the fourth.

    One group's product runs while the one before it is scaled.
    """
    first = start_group(x, w, none, 0)
    second = start_group(x, w, none, 1)
    first = warpgroup_mma_wait(1, [first])
    part = scaled(part, first, scales, 0)
    third = start_group(x, w, none, 2)
    second = warpgroup_mma_wait(1, [second])
    part = scaled(part, second, scales, 1)
    fourth = start_group(x, w, none, 3)
    third = warpgroup_mma_wait(1, [third])
    part = scaled(part, third, scales, 2)
    return part, warpgroup_mma_wait(0, [fourth])


@gluon.jit(do_not_specialize=["tokens"])
def _left(
    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, out_ptr, tokens,
    K: gl.constexpr, OUT: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
    SEGMENTS: gl.constexpr,
):  # fmt: skip
    """64 rows and ROWS columns of out = x W^T: bf16, or of several segments one, fp32."""
    warps: gl.constexpr = gl.num_warps()
    all_steps: gl.constexpr = K // 128
    wide: gl.constexpr = warps // 4
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, wide], [16, ROWS // wide, 32])
    copy: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [warps, 1], [1, 0])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    ws = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, ROWS, 128], swizzled)
    xs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 64, 128], swizzled)
    tile, block, number = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    start = number * all_steps // SEGMENTS
    steps = (number + 1) * all_steps // SEGMENTS - start

    column = gl.arange(0, 128, gl.SliceLayout(0, copy))
    r = gl.arange(0, ROWS, gl.SliceLayout(1, copy))
    w_ptr += block.to(gl.int64) * (ROWS * K) + start * 8192
    w_ptr = w_ptr + ((r // 64 * (64 * K) + r % 64 * 128)[:, None] + column[None, :])
    n = tile * 64 + gl.arange(0, 64, gl.SliceLayout(1, copy))
    x_ptr = x_ptr + ((n * K + start * 128)[:, None] + column[None, :])
    x_used = (n < tokens)[:, None]
    # Sums as [tokens, blocks of 32 rows, 32 rows]: one scale a token and block.
    none = gl.zeros([64, ROWS], gl.float32, mma)
    part = none.reshape([64, ROWS // 32, 32])
    thin: gl.constexpr = gl.SliceLayout(2, part.type.layout)
    m = tile * 64 + gl.arange(0, 64, gl.SliceLayout(1, thin))
    s_used = m < tokens
    s_ptr = x_scale_ptr + (m * all_steps + start)
    b = block * (ROWS // 32) + gl.arange(0, ROWS // 32, gl.SliceLayout(0, thin))
    w_scale_ptr = w_scale_ptr + (b * all_steps + start)

    # The weight does not depend on the kernel before, so its copies start before that has ended.
    gdc_launch_dependents()
    for s in gl.static_range(STAGES - 1):
        if s < steps:
            async_copy.async_copy_global_to_shared(ws.index(s), w_ptr + s * 8192)
    w_next = gl.load(w_scale_ptr)
    gdc_wait()
    for s in gl.static_range(STAGES - 1):
        if s < steps:
            async_copy.async_copy_global_to_shared(xs.index(s), x_ptr + s * 128, mask=x_used)
        async_copy.commit_group()
    x_next = gl.load(s_ptr, s_used, 0)
    for step in range(steps):
        async_copy.wait_group(STAGES - 2)
        slot = step % STAGES
        both = x_next[:, None] + w_next[None, :]
        ahead = step + STAGES - 1
        if ahead < steps:
            to = ahead % STAGES
            async_copy.async_copy_global_to_shared(ws.index(to), w_ptr + ahead * 8192)
            async_copy.async_copy_global_to_shared(xs.index(to), x_ptr + ahead * 128, mask=x_used)
        async_copy.commit_group()
        after = gl.minimum(step + 1, steps - 1)
        w_next = gl.load(w_scale_ptr + after)
        x_next = gl.load(s_ptr + after, s_used, 0)
        part, fourth = multiply(part, xs.index(slot), ws.index(slot), both, none)
        part = scaled(part, fourth, both, 3)

    width: gl.constexpr = 4 if SEGMENTS > 1 else 8
    across: gl.constexpr = min(ROWS // width, 32)
    layout: gl.constexpr = gl.BlockedLayout([1, width], [32 // across, across], [warps, 1], [1, 0])
    token = gl.arange(0, 64, gl.SliceLayout(1, layout))
    row = block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, layout))
    out_ptr += (number * tokens.to(gl.int64) + tile * 64) * OUT
    value = part.reshape([64, ROWS])
    if SEGMENTS == 1:
        value = value.to(gl.bfloat16)
    value = gl.convert_layout(value, layout)
    used = (tile * 64 + token < tokens)[:, None]
    gl.store(out_ptr + ((token * OUT)[:, None] + row[None, :]), value, used)


def input_left(
    x: Quantised, codes: Tensor, scale: Tensor, out: Tensor, tile: Tile, count: int
) -> None:
    """Fill `out` with the product, or with the sums of each segment of K.

    Args:
        x: [tokens, K].
        codes: codes of a packed weight.
        scale: its scales.
        out: bf16 [tokens, out], or fp32 [count, tokens, out].
        tile: 64, 128 or 256 rows, 64 tokens.
        count: segments of K.
    """
    tokens, columns = x.codes.shape
    rows = scale.shape[0] * 32
    _left[(-(-tokens // 64), rows // tile.rows, count)](
        x.codes.view(torch.float8_e4m3fn), x.scale.view(torch.int32),
        codes.view(torch.float8_e4m3fn), scale, out, tokens,
        columns, rows, tile.rows, tile.stages, count,
        num_warps=tile.warps, maxnreg=tile.registers, launch_pdl=True,
    )  # fmt: skip
