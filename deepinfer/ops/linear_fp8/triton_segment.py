"""FP8 linear layer on Hopper for one segment of K and 64 tokens: one warp copies, four multiply.

As triton_left.py, with copies by the tensor memory accelerator, so that the warps that multiply
make no addresses. Barriers in shared memory say which buffers are full and which are free. Bits are
those of triton.py. Knows nothing of what it projects.
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
from deepinfer.ops.linear_fp8.triton_wide import SWIZZLED


@gluon.jit
def _multiply(
    xs, ws, full, free, x_scale_ptr, w_scale_ptr, out_ptr, tokens, start, steps,
    K: gl.constexpr, OUT: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
    SEGMENTS: gl.constexpr,
):  # fmt: skip
    """64 rows and ROWS columns of out = x W^T: bf16, or of several segments one, fp32."""
    all_steps: gl.constexpr = K // 128
    tile, block, number = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 32])
    # Sums as [tokens, blocks of 32 rows, 32 rows]: one scale a token and block.
    none = gl.zeros([64, ROWS], gl.float32, mma)
    part = none.reshape([64, ROWS // 32, 32])
    thin: gl.constexpr = gl.SliceLayout(2, part.type.layout)
    m = tile * 64 + gl.arange(0, 64, gl.SliceLayout(1, thin))
    s_ptr = x_scale_ptr + (m * all_steps + start)
    b = block * (ROWS // 32) + gl.arange(0, ROWS // 32, gl.SliceLayout(0, thin))
    w_scale_ptr = w_scale_ptr + (b * all_steps + start)
    w_next = gl.load(w_scale_ptr)
    gdc_wait()
    x_next = gl.load(s_ptr, m < tokens, 0)
    for step in range(steps):
        slot = step % STAGES
        both = x_next[:, None] + w_next[None, :]
        after = gl.minimum(step + 1, steps - 1)
        w_next = gl.load(w_scale_ptr + after)
        x_next = gl.load(s_ptr + after, m < tokens, 0)
        mbarrier.wait(full.index(slot), step // STAGES & 1)
        part, fourth = multiply(part, xs.index(slot), ws.index(slot), both, none)
        mbarrier.arrive(free.index(slot), count=1)
        part = scaled(part, fourth, both, 3)

    width: gl.constexpr = 4 if SEGMENTS > 1 else 8
    across: gl.constexpr = min(ROWS // width, 32)
    layout: gl.constexpr = gl.BlockedLayout([1, width], [32 // across, across], [4, 1], [1, 0])
    value = part.reshape([64, ROWS])
    if SEGMENTS == 1:
        value = value.to(gl.bfloat16)
    value = gl.convert_layout(value, layout)
    token = gl.arange(0, 64, gl.SliceLayout(1, layout))
    row = block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, layout))
    out_ptr += (number * tokens.to(gl.int64) + tile * 64) * OUT
    used = (tile * 64 + token < tokens)[:, None]
    # Sums of segments are read at once; the weight that streams by shall not push them out.
    keep: gl.constexpr = "evict_last" if SEGMENTS > 1 else ""
    at = (token * OUT)[:, None] + row[None, :]
    gl.store(out_ptr + at, value, used, eviction_policy=keep)


@gluon.jit
def _fetch(
    xs, ws, full, x_tiles, w_tiles, step, slot, K: gl.constexpr, ROWS: gl.constexpr,
    WEIGHT: gl.constexpr, INPUT: gl.constexpr,
):  # fmt: skip
    """Start the copies of one step into buffer `slot`: of the weight, of the input or of both."""
    bar = full.index(slot)
    if WEIGHT:
        mbarrier.expect(bar, (ROWS + 64) * 128)
        for h in gl.static_range(ROWS // 64):
            row = ((gl.program_id(1) * (ROWS // 64) + h) * (K // 128) + step) * 64
            part = ws.index(slot).slice(64 * h, 64, 0)
            tma.async_copy_global_to_shared(w_tiles, [row, 0], bar, part)
    if INPUT:
        place = [gl.program_id(0) * 64, step * 128]
        tma.async_copy_global_to_shared(x_tiles, place, bar, xs.index(slot))


@gluon.jit
def _copy(
    xs, ws, full, free, x_tiles, w_tiles, start, steps,
    K: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Fill buffers in the order in which they are used."""
    # The weight does not depend on the kernel before, so its copies start before that has ended.
    for s in gl.static_range(STAGES):
        if s < steps:
            _fetch(xs, ws, full, x_tiles, w_tiles, start + s, s, K, ROWS, True, False)
    gdc_wait()
    for s in gl.static_range(STAGES):
        if s < steps:
            _fetch(xs, ws, full, x_tiles, w_tiles, start + s, s, K, ROWS, False, True)
    for step in range(STAGES, steps):
        slot = step % STAGES
        mbarrier.wait(free.index(slot), (step // STAGES & 1) ^ 1)
        _fetch(xs, ws, full, x_tiles, w_tiles, start + step, slot, K, ROWS, True, True)


@gluon.jit(do_not_specialize=["tokens"])
def _segment(
    x_tiles, w_tiles, x_scale_ptr, w_scale_ptr, out_ptr, tokens,
    K: gl.constexpr, OUT: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
    SEGMENTS: gl.constexpr,
):  # fmt: skip
    """A tile of out = x W^T of one segment."""
    all_steps: gl.constexpr = K // 128
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    ws = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, ROWS, 128], swizzled)
    xs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, 64, 128], swizzled)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
    number = gl.program_id(2)
    start = number * all_steps // SEGMENTS
    steps = (number + 1) * all_steps // SEGMENTS - start
    gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_multiply, (
                xs, ws, full, free, x_scale_ptr, w_scale_ptr, out_ptr, tokens, start, steps,
                K, OUT, ROWS, STAGES, SEGMENTS,
            )),
            (_copy, (xs, ws, full, free, x_tiles, w_tiles, start, steps, K, ROWS, STAGES)),
        ],
        [1],
        [24],
    )  # fmt: skip


def segment(
    x: Quantised, codes: Tensor, scale: Tensor, out: Tensor, tile: Tile, count: int
) -> None:
    """Fill `out` with the product, or with the sums of each segment of K.

    Args:
        x: [tokens, K], at least one token.
        codes: codes of a packed weight.
        scale: its scales.
        out: bf16 [tokens, out], or fp32 [count, tokens, out].
        tile: 64 or 128 rows, 64 tokens; `warps` that multiply.
        count: segments of K.
    """
    tokens, columns = x.codes.shape
    rows = scale.shape[0] * 32
    x_codes, w_codes = (t.view(torch.float8_e4m3fn) for t in (x.codes, codes.view(-1, 128)))
    _segment[(-(-tokens // 64), rows // tile.rows, count)](
        TensorDescriptor.from_tensor(x_codes, [64, 128], SWIZZLED),
        TensorDescriptor.from_tensor(w_codes, [64, 128], SWIZZLED),
        x.scale.view(torch.int32), scale, out, tokens,
        columns, rows, tile.rows, tile.stages, count,
        num_warps=tile.warps, maxnreg=tile.registers, launch_pdl=True,
    )  # fmt: skip
