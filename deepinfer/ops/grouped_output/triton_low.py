"""FP8 weights times bf16 rows on Hopper: codes become bf16 in registers, for bf16 wgmma.

Decoded codes are exact in bf16, so nothing rounds before the fp32 sum. K is cut into segments that
depend on the weight alone. With few tokens each segment is a program and who reads them adds them;
with many one program adds them itself: the same order, the same bits. Launches overlap
(programmatic dependent launch): the next one reads its weight while this one ends. Knows nothing
of what it projects.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.grouped_output.packing import PackedLow
from deepinfer.ops.grouped_output.plan import Tile, choose, segments
from deepinfer.ops.grouped_output.triton_codes import GROWN, weights
from deepinfer.ops.grouped_output.triton_more import multiply
from deepinfer.ops.grouped_output.triton_wide import wide


@gluon.jit(do_not_specialize=["tokens"])
def _low(
    x_ptr, w_ptr, w_scale_ptr, part_ptr, out_ptr, tokens,
    K: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr,
    TOKENS: gl.constexpr, STAGES: gl.constexpr, SEGMENTS: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    """One tile of out = x W^T, or with SPLIT one segment of it.

    Each GROUP rows of the weight have K columns of the input of their own.
    """
    warps: gl.constexpr = gl.num_warps()
    all_steps: gl.constexpr = K // 128
    segment: gl.constexpr = all_steps // SEGMENTS
    steps: gl.constexpr = segment if SPLIT else all_steps
    width: gl.constexpr = OUT // GROUP * K
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, TOKENS, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    bytes_layout: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [warps, 1], [1, 0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    words = gl.allocate_shared_memory(gl.uint8, [STAGES, ROWS * 8, 16], plain)
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS * 2, 64], swizzled)
    block, tile = gl.program_id(0), gl.program_id(1)
    start = gl.program_id(2) * segment if SPLIT else 0

    piece = gl.arange(0, ROWS * 8, gl.SliceLayout(1, bytes_layout))
    byte = gl.arange(0, 16, gl.SliceLayout(0, bytes_layout))
    w_ptr += block.to(gl.int64) * (ROWS * K) + start * 8192
    thread = piece % (ROWS * 2)
    w_offset = piece // (ROWS * 2) * 2048 + thread // 128 * (64 * K) + thread % 128 * 16
    w_ptr = w_ptr + (w_offset[:, None] + byte[None, :])
    row = block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, a_layout))
    w_scale_ptr = w_scale_ptr + (row // 32 * all_steps + start)
    x_ptr += block * ROWS // GROUP * K + start * 128

    # A step's last product may still read its buffer when the next step starts, so copies go to
    # the buffer before that; decoding then hides behind products.
    depth: gl.constexpr = STAGES - 2
    # The weight does not depend on the kernel before, so its copies start before that has ended.
    gdc_launch_dependents()
    for s in gl.static_range(depth):
        if s < steps:
            async_copy.async_copy_global_to_shared(words.index(s), w_ptr + s * 8192)
    following = gl.load(w_scale_ptr)
    gdc_wait()
    copy: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    line = gl.arange(0, TOKENS * 2, gl.SliceLayout(1, copy))
    n = tile * TOKENS + line % TOKENS
    x_used = (n < tokens)[:, None]
    offset = n * width + line // TOKENS * 64
    x_ptr = x_ptr + (offset[:, None] + gl.arange(0, 64, gl.SliceLayout(0, copy))[None, :])
    for s in gl.static_range(depth):
        if s < steps:
            async_copy.async_copy_global_to_shared(xs.index(s), x_ptr + s * 128, mask=x_used)
        async_copy.commit_group()

    part = gl.zeros([ROWS, TOKENS], gl.float32, mma)
    total = part
    for step in range(steps):
        async_copy.wait_group(depth - 1)
        w_scale, slot = following, step % STAGES
        ahead = step + depth
        if ahead < steps:
            to = ahead % STAGES
            async_copy.async_copy_global_to_shared(words.index(to), w_ptr + ahead * 8192)
            columns = x_ptr + ahead * 128
            async_copy.async_copy_global_to_shared(xs.index(to), columns, mask=x_used)
        async_copy.commit_group()
        following = gl.load(w_scale_ptr + gl.minimum(step + 1, steps - 1))
        for c in gl.static_range(4):
            word = words.index(slot).slice(c * ROWS * 2, ROWS * 2).load(bytes_layout)
            a = weights(word, w_scale >> (8 * c), ROWS, a_layout)
            x = xs.index(slot).slice(c // 2 * TOKENS, TOKENS).slice(c % 2 * 32, 32, 1)
            part = warpgroup_mma(a, x.permute((1, 0)), part, is_async=True)
            part = warpgroup_mma_wait(1, [part])
        if steps > segment:  # noqa: SIM102 - the outer test is a constant
            if step % segment == segment - 1:
                # Not pure, so that this stays a branch; else every step would select.
                zero = gl.inline_asm_elementwise(
                    "mov.b32 $0, 0;", "=r,r", [step], gl.float32, False, 1
                )
                total += warpgroup_mma_wait(0, [part])
                part = gl.zeros([ROWS, TOKENS], gl.float32, mma) + zero
    if steps == segment:
        total = warpgroup_mma_wait(0, [part])
    total = total * GROWN

    layout: gl.constexpr = gl.BlockedLayout([8, 1], [4, 8], [1, warps], [0, 1])
    out_row = block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    token = tile * TOKENS + gl.arange(0, TOKENS, gl.SliceLayout(0, layout))
    at = (token.to(gl.int64) * OUT)[None, :] + out_row[:, None]
    inside = (token < tokens)[None, :]
    value = gl.convert_layout(total, layout)
    if SPLIT and SEGMENTS > 1:
        segment_part = part_ptr + gl.program_id(2) * (tokens.to(gl.int64) * OUT)
        gl.store(segment_part + at, value, inside)
    else:
        gl.store(out_ptr + at, value.to(gl.bfloat16), inside)


def launch(x: Tensor, weight: PackedLow, groups: int, tile: Tile, count: int) -> Tensor:
    """The kernel with a given tile (at least three stages) and number of segments; see `low_rank`.

    With no more tokens than the tile has, each segment of K is a program; a tile with `more` tokens
    or a warp that copies adds them always.
    """
    tokens, width = x.shape
    out, columns, device = weight.scale.shape[0] * 32, width // groups, weight.codes.device
    if tokens * width >= 2**31:
        raise ValueError(f"grouped_output: {tokens} tokens in one call; split the step")
    whole = tile.more or tile.copying
    split = tokens <= tile.tokens and not whole
    sums = count if split and count > 1 else 0
    parts = torch.empty((sums, tokens, out), dtype=torch.float32, device=device)
    y = torch.empty((0 if sums else tokens, out), dtype=torch.bfloat16, device=device)
    if whole:
        if tokens:
            run = wide if tile.copying else multiply
            run(x, weight, y, groups, tile, count)
        return y
    grid = (out // tile.rows, triton.cdiv(tokens, tile.tokens), count if split else 1)
    _low[grid](
        x, weight.codes, weight.scale, parts, y, tokens,
        columns, out, out // groups, tile.rows, tile.tokens, tile.stages, count, split,
        num_warps=tile.warps, launch_pdl=True,
    )  # fmt: skip
    return parts if sums else y


def low_rank(x: Tensor, weight: PackedLow, groups: int) -> Tensor:
    """Each of `groups` parts of the weight times its own columns of unquantised rows.

    Args:
        x: [tokens, groups * K] bf16, contiguous.
        weight: [groups * rank, K], packed.
        groups: see above.

    Returns:
        [tokens, groups * rank] bf16, or with few tokens the sums of each segment of K, fp32
        [segments, tokens, groups * rank]; `triton_rows.sum_quantise` takes both.
    """
    tokens, width = x.shape
    out = weight.scale.shape[0] * 32
    tile = choose(tokens, out, out // groups)
    return launch(x, weight, groups, tile, segments(out, width // groups))
