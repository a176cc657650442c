"""FP8 weights times bf16 rows, 160 tokens a program: for numbers of tokens that 128 divide badly.

As in triton_low.py, but with two tiles of sums, of 128 and 32 tokens, that share the decoded codes.
The order of every sum is the same, hence the bits. Knows nothing of what it projects.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import triton
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.grouped_output.packing import PackedLow
from deepinfer.ops.grouped_output.plan import Tile
from deepinfer.ops.grouped_output.triton_codes import GROWN, weights


@gluon.jit
def _fetch(to, x_ptr, first, tokens, step, WIDTH: gl.constexpr):
    """Start to copy 128 columns of the tokens `first` and on, in two halves of 64."""
    count: gl.constexpr = to.shape[0] // 2
    copy: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [gl.num_warps(), 1], [1, 0])
    line = gl.arange(0, to.shape[0], gl.SliceLayout(1, copy))
    n = first + line % count
    offset = n * WIDTH + line // count * 64
    at = x_ptr + (offset[:, None] + gl.arange(0, 64, gl.SliceLayout(0, copy))[None, :])
    async_copy.async_copy_global_to_shared(to, at + step * 128, mask=(n < tokens)[:, None])


@gluon.jit
def _store(total, out_ptr, first_row, first, tokens, OUT: gl.constexpr):
    """Store sums of rows of the weight and tokens."""
    layout: gl.constexpr = gl.BlockedLayout([8, 1], [4, 8], [1, gl.num_warps()], [0, 1])
    row = first_row + gl.arange(0, total.shape[0], gl.SliceLayout(1, layout))
    token = first + gl.arange(0, total.shape[1], gl.SliceLayout(0, layout))
    at = (token.to(gl.int64) * OUT)[None, :] + row[:, None]
    value = gl.convert_layout(total * GROWN, layout)
    gl.store(out_ptr + at, value.to(gl.bfloat16), (token < tokens)[None, :])


@gluon.jit(do_not_specialize=["tokens"])
def _more(
    x_ptr, w_ptr, w_scale_ptr, out_ptr, tokens,
    K: gl.constexpr, OUT: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr,
    TOKENS: gl.constexpr, MORE: gl.constexpr, STAGES: gl.constexpr, SEGMENTS: gl.constexpr,
):  # fmt: skip
    """One tile of out = x W^T, of TOKENS + MORE tokens; all segments of K, added in order."""
    warps: gl.constexpr = gl.num_warps()
    steps: gl.constexpr = K // 128
    segment: gl.constexpr = steps // SEGMENTS
    width: gl.constexpr = OUT // GROUP * K
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, TOKENS, 16])
    few: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, MORE, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    bytes_layout: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [warps, 1], [1, 0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    words = gl.allocate_shared_memory(gl.uint8, [STAGES, ROWS * 8, 16], plain)
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TOKENS * 2, 64], swizzled)
    ys = gl.allocate_shared_memory(gl.bfloat16, [STAGES, MORE * 2, 64], swizzled)
    block, first = gl.program_id(0), gl.program_id(1) * (TOKENS + MORE)

    piece = gl.arange(0, ROWS * 8, gl.SliceLayout(1, bytes_layout))
    byte = gl.arange(0, 16, gl.SliceLayout(0, bytes_layout))
    w_ptr += block.to(gl.int64) * (ROWS * K)
    thread = piece % (ROWS * 2)
    w_offset = piece // (ROWS * 2) * 2048 + thread // 128 * (64 * K) + thread % 128 * 16
    w_ptr = w_ptr + (w_offset[:, None] + byte[None, :])
    row = block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, a_layout))
    w_scale_ptr = w_scale_ptr + row // 32 * steps
    x_ptr += block * ROWS // GROUP * K

    # A step's last products may still read their buffers when the next step starts.
    depth: gl.constexpr = STAGES - 2
    gdc_launch_dependents()
    for s in gl.static_range(depth):
        async_copy.async_copy_global_to_shared(words.index(s), w_ptr + s * 8192)
    following = gl.load(w_scale_ptr)
    gdc_wait()
    for s in gl.static_range(depth):
        _fetch(xs.index(s), x_ptr, first, tokens, s, width)
        _fetch(ys.index(s), x_ptr, first + TOKENS, tokens, s, width)
        async_copy.commit_group()

    part = gl.zeros([ROWS, TOKENS], gl.float32, mma)
    more = gl.zeros([ROWS, MORE], gl.float32, few)
    total, rest = part, more
    for step in range(steps):
        async_copy.wait_group(depth - 1)
        w_scale, slot = following, step % STAGES
        ahead = step + depth
        if ahead < steps:
            to = ahead % STAGES
            async_copy.async_copy_global_to_shared(words.index(to), w_ptr + ahead * 8192)
            _fetch(xs.index(to), x_ptr, first, tokens, ahead, width)
            _fetch(ys.index(to), x_ptr, first + TOKENS, tokens, ahead, width)
        async_copy.commit_group()
        following = gl.load(w_scale_ptr + gl.minimum(step + 1, steps - 1))
        for c in gl.static_range(4):
            word = words.index(slot).slice(c * ROWS * 2, ROWS * 2).load(bytes_layout)
            a = weights(word, w_scale >> (8 * c), ROWS, a_layout)
            b = gl.convert_layout(a, gl.DotOperandLayout(0, few, 2), assert_trivial=True)
            x = xs.index(slot).slice(c // 2 * TOKENS, TOKENS).slice(c % 2 * 32, 32, 1)
            y = ys.index(slot).slice(c // 2 * MORE, MORE).slice(c % 2 * 32, 32, 1)
            part = warpgroup_mma(a, x.permute((1, 0)), part, is_async=True)
            more = warpgroup_mma(b, y.permute((1, 0)), more, is_async=True)
            part, more = warpgroup_mma_wait(2, [part, more])
        if steps > segment:  # noqa: SIM102 - the outer test is a constant
            if step % segment == segment - 1:
                # Not pure, so that this stays a branch; else every step would select.
                zero = gl.inline_asm_elementwise(
                    "mov.b32 $0, 0;", "=r,r", [step], gl.float32, False, 1
                )
                part, more = warpgroup_mma_wait(0, [part, more])
                total += part
                rest += more
                part = gl.zeros([ROWS, TOKENS], gl.float32, mma) + zero
                more = gl.zeros([ROWS, MORE], gl.float32, few) + zero
    if steps == segment:
        total, rest = warpgroup_mma_wait(0, [part, more])
    _store(total, out_ptr, block * ROWS, first, tokens, OUT)
    _store(rest, out_ptr, block * ROWS, first + TOKENS, tokens, OUT)


def multiply(
    x: Tensor, weight: PackedLow, out: Tensor, groups: int, tile: Tile, count: int
) -> None:
    """Fill `out` with the product of whole sums.

    Args:
        x: [tokens, groups * K] bf16, contiguous.
        weight: packed.
        out: bf16 [tokens, groups * rank].
        groups: parts of the weight with columns of their own.
        tile: with `more` tokens, at least three stages, none of them unused.
        count: segments of K.
    """
    (tokens, width), rows = x.shape, out.shape[1]
    _more[(rows // tile.rows, triton.cdiv(tokens, tile.tokens + tile.more))](
        x, weight.codes, weight.scale, out, tokens,
        width // groups, rows, rows // groups, tile.rows, tile.tokens, tile.more, tile.stages,
        count, num_warps=tile.warps, launch_pdl=True,
    )  # fmt: skip
