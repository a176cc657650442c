"""FP8 linear layer on Hopper: codes stay packed and become bf16 in registers, for wgmma.

Products of decoded codes are exact in bf16 and are added in fp32. K is cut into segments that
depend on the weight alone. With few tokens each segment is a program and the last to finish adds
them; with many one program adds them itself: the same order, the same bits. Knows nothing of what
it projects. Meaning: reference.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.formats import Fp8Weight, Quantised
from deepinfer.ops.linear_fp8.plan import SPLIT_TOKENS, Tile, choose, segments

_LARGEST_SCALE = 166  # E8M0 byte; a larger one would overflow the bf16 multiplier in `_DECODE`
_INPUT_COLUMNS = 512


class PackedLinear(NamedTuple):
    """One weight in the order in which threads read it, and one arrival counter a row block.

    codes [out / 64, K / 128, 4, 128, 16] uint8; scale [out / 32, K / 128] int32, four bytes a step;
    arrivals [out / 64] int32, zero between calls: calls with one weight must not overlap.
    """

    codes: Tensor
    scale: Tensor
    arrivals: Tensor


def pack(weight: Fp8Weight | Tensor) -> PackedLinear:
    """Reorder a weight so that a thread's part of a tile is 16 neighbouring bytes.

    Rows go in blocks of 64, columns in steps of 128 = four groups of 32; the order inside is that
    of wgmma's A operand in registers, with the codes of rows r and r + 8 in one half-word.

    Args:
        weight: codes [out, K], out a multiple of 64, K of 128.

    Raises:
        ValueError: the weight is not FP8, a scale is too large or a size does not fit.
    """
    if not isinstance(weight, Fp8Weight):
        raise ValueError("linear_fp8: the triton kernel takes FP8 weights only; use reference")
    out, columns = weight.codes.shape
    if out % 64 or columns % 128:
        raise ValueError(f"linear_fp8: [{out}, {columns}] is no multiple of [64, 128]")
    largest = int(weight.scale.max())
    if largest > _LARGEST_SCALE:
        raise ValueError(f"linear_fp8: scale byte {largest} is above {_LARGEST_SCALE}")
    # axes: block, 4 warps, row bit 3, 8 rows | step, group, 4 words, 4 lanes, parity
    split = weight.codes.view(out // 64, 4, 2, 8, columns // 128, 4, 4, 4, 2)
    codes = split.permute(0, 4, 5, 1, 3, 7, 6, 8, 2).flip(-1)  # row r in the high byte
    codes = codes.contiguous().view(out // 64, columns // 128, 4, 128, 16)
    scale = weight.scale.contiguous().view(torch.int32)
    arrivals = torch.zeros(out // 64, dtype=torch.int32, device=codes.device)
    return PackedLinear(codes, scale, arrivals)


# One word: two columns (its halves), rows r (high bytes) and r + 8. Exponent and mantissa land on
# bf16 bits 10..4, so that a code reads 2^-120 too small; the multiplier 2^(scale + 88) leaves a
# factor 2^-32, which the end takes back exactly.
_DECODE = gl.constexpr("""
{
.reg .b32 t, u;
and.b32 t, $2, 0x80008000;
shr.u32 u, $2, 4;
lop3.b32 $0, u, 0x07F007F0, t, 0xEA;
shl.b32 t, $2, 8;
and.b32 t, t, 0x80008000;
shl.b32 u, $2, 4;
lop3.b32 $1, u, 0x07F007F0, t, 0xEA;
mul.rn.bf16x2 $0, $0, $3;
mul.rn.bf16x2 $1, $1, $5;
}
""")
_OPERANDS = gl.constexpr("=&r,=&r,r,r,r,r,r")


@triton.jit
def _decode_input(codes_ptr, scale_ptr, x_ptr, K: tl.constexpr, COLUMNS: tl.constexpr):
    """FP8 pair -> bf16, exact."""
    gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    code = tl.load(codes_ptr + token * K + column, column < K, 0)
    byte = tl.load(scale_ptr + token * (K // 32) + column // 32, column < K, 127)
    size = (byte.to(tl.int32) << 23).to(tl.float32, bitcast=True)
    value = code.to(tl.float8e4nv, bitcast=True).to(tl.float32) * size
    tl.store(x_ptr + token * K + column, value.to(tl.bfloat16), column < K)


@gluon.jit
def _fetch_weight(words, w_ptr, step, slot):
    """Start the copies of one step of 128 columns of the weight into buffer `slot`."""
    for part in gl.static_range(4):
        codes = w_ptr + (step * 8192 + part * 2048)
        async_copy.async_copy_global_to_shared(words.index(slot * 4 + part), codes)


@gluon.jit
def _fetch_input(xs, x_ptr, x_used, step, slot):
    """The same for the input; closes the group of copies."""
    for c in gl.static_range(2):
        columns = x_ptr + (step * 128 + c * 64)
        async_copy.async_copy_global_to_shared(xs.index(slot * 2 + c), columns, mask=x_used)
    async_copy.commit_group()


@gluon.jit
def _decoded(words, scale, ROWS: gl.constexpr, layout: gl.constexpr):
    """Packed group [ROWS * 2, 16] -> bf16 [ROWS, 32] in wgmma's register order, no data moved."""
    codes = words.reshape([ROWS // 64, 4, 8, 4, 4, 2, 2]).permute((0, 1, 5, 2, 4, 3, 6))
    codes = gl.convert_layout(codes.reshape([ROWS, 32]), layout, assert_trivial=True)
    times = ((scale & 255) * 0x00800080 + 88 * 0x00800080)[:, None]
    return gl.inline_asm_elementwise(_DECODE, _OPERANDS, [codes, times], gl.bfloat16, True, 4)


@gluon.jit(do_not_specialize=["tokens"])
def _linear(
    x_ptr, w_ptr, scale_ptr, arrivals_ptr, part_ptr, out_ptr, tokens,
    K: gl.constexpr, OUT: gl.constexpr, ROWS: gl.constexpr, TOKENS: gl.constexpr,
    STAGES: gl.constexpr, SEGMENTS: gl.constexpr, SPLIT: gl.constexpr,
):  # fmt: skip
    """One tile of out = x W^T, or with SPLIT one segment of it."""
    warps: gl.constexpr = gl.num_warps()
    all_steps: gl.constexpr = K // 128
    segment: gl.constexpr = all_steps // SEGMENTS
    steps: gl.constexpr = segment if SPLIT else all_steps
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, TOKENS, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    bytes_layout: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [warps, 1], [1, 0])
    x_layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    words = gl.allocate_shared_memory(gl.uint8, [STAGES * 4, ROWS * 2, 16], plain)
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES * 2, TOKENS, 64], swizzled)
    block, tile = gl.program_id(0), gl.program_id(1)
    start = gl.program_id(2) * segment if SPLIT else 0

    thread = gl.arange(0, ROWS * 2, gl.SliceLayout(1, bytes_layout))
    byte = gl.arange(0, 16, gl.SliceLayout(0, bytes_layout))
    w_ptr += block.to(gl.int64) * (ROWS * K) + start * 8192
    w_ptr = w_ptr + ((thread // 128 * (64 * K) + thread % 128 * 16)[:, None] + byte[None, :])
    row = block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, a_layout))
    scale_ptr = scale_ptr + (row // 32 * all_steps + start)
    n = tile * TOKENS + gl.arange(0, TOKENS, gl.SliceLayout(1, x_layout))
    x_used = (n < tokens)[:, None]
    column = gl.arange(0, 64, gl.SliceLayout(0, x_layout))
    x_ptr = x_ptr + ((n * K + start * 128)[:, None] + column[None, :])

    # The weight does not depend on the kernel before, so its copies start before that has ended.
    for s in gl.static_range(STAGES - 1):
        if s < steps:
            _fetch_weight(words, w_ptr, s, s)
    following = gl.load(scale_ptr)
    gdc_wait()
    for s in gl.static_range(STAGES - 1):
        if s < steps:
            _fetch_input(xs, x_ptr, x_used, s, s)
        else:
            async_copy.commit_group()
    total = gl.zeros([ROWS, TOKENS], gl.float32, mma)
    part = total
    for step in range(steps):
        async_copy.wait_group(STAGES - 2)
        scale, slot = following, step % STAGES
        ahead = step + STAGES - 1
        if ahead < steps:
            _fetch_weight(words, w_ptr, ahead, ahead % STAGES)
            _fetch_input(xs, x_ptr, x_used, ahead, ahead % STAGES)
        else:
            async_copy.commit_group()
        following = gl.load(scale_ptr + gl.minimum(step + 1, steps - 1))
        for c in gl.static_range(2):
            low = words.index(slot * 4 + c * 2).load(bytes_layout)
            high = words.index(slot * 4 + c * 2 + 1).load(bytes_layout)
            low = _decoded(low, scale >> (16 * c), ROWS, a_layout)
            high = _decoded(high, scale >> (16 * c + 8), ROWS, a_layout)
            a = gl.join(low, high).permute((0, 2, 1)).reshape([ROWS, 64])
            a = gl.convert_layout(a, a_layout, assert_trivial=True)
            x = xs.index(slot * 2 + c).permute((1, 0))
            part = warpgroup_mma(a, x, part, is_async=True)
        part = warpgroup_mma_wait(0, [part])
        if not SPLIT and SEGMENTS > 1:  # noqa: SIM102 - the outer test is a constant
            if step % segment == segment - 1:
                total += part
                part = gl.zeros([ROWS, TOKENS], gl.float32, mma)
    gdc_launch_dependents()  # not earlier: waiting programs would crowd some processors
    if not SPLIT and SEGMENTS > 1:
        part = total

    layout: gl.constexpr = gl.BlockedLayout([8, 1], [4, 8], [1, warps], [0, 1])
    out_row = block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    token = tile * TOKENS + gl.arange(0, TOKENS, gl.SliceLayout(0, layout))
    at = (token.to(gl.int64) * OUT)[None, :] + out_row[:, None]
    inside = (token < tokens)[None, :]
    value = gl.convert_layout(part, layout)
    if SPLIT and SEGMENTS > 1:
        size = tokens.to(gl.int64) * OUT
        mine = part_ptr + gl.program_id(2) * size
        gl.store(mine + at, value, inside, cache_modifier=".cg")
        gl.thread_barrier()
        arrived = gl.atomic_add(arrivals_ptr + block, 1, sem="acq_rel")
        if arrived < SEGMENTS - 1:
            return
        value = gl.zeros([ROWS, TOKENS], gl.float32, layout)
        for s in gl.static_range(SEGMENTS):
            value += gl.load(part_ptr + (s * size + at), inside, 0.0, cache_modifier=".cg")
        gl.store(arrivals_ptr + block, 0)
    gl.store(out_ptr + at, (value * 4294967296.0).to(gl.bfloat16), inside)


def launch(x: Quantised, weight: PackedLinear, tile: Tile, count: int) -> Tensor:
    """The kernel with a given tile and number of segments; x and result as in `linear_fp8`."""
    tokens, columns = x.codes.shape
    out, device = weight.scale.shape[0] * 32, x.codes.device
    if tokens * columns >= 2**31:
        raise ValueError(f"linear_fp8: {tokens} tokens in one call; split the step")
    split = tokens <= min(SPLIT_TOKENS, tile.tokens)
    y = torch.empty((tokens, out), dtype=torch.bfloat16, device=device)
    sums = count if split and count > 1 else 0
    parts = torch.empty((sums, tokens, out), dtype=torch.float32, device=device)
    plain = torch.empty((tokens, columns), dtype=torch.bfloat16, device=device)
    _decode_input[(tokens, triton.cdiv(columns, _INPUT_COLUMNS))](
        x.codes, x.scale, plain, columns, _INPUT_COLUMNS, num_warps=2, launch_pdl=True
    )
    grid = (out // tile.rows, triton.cdiv(tokens, tile.tokens), count if split else 1)
    _linear[grid](
        plain, weight.codes, weight.scale, weight.arrivals, parts, y, tokens,
        columns, out, tile.rows, tile.tokens, tile.stages, count, split,
        num_warps=tile.warps, launch_pdl=True,
    )  # fmt: skip
    return y


def linear_fp8(x: Tensor | Quantised, weight: PackedLinear) -> Tensor:
    """As the reference, with a packed weight.

    Args:
        x: [tokens, K] as a contiguous FP8 pair.
        weight: what `pack` returned.

    Returns:
        [tokens, out] bf16.

    Raises:
        ValueError: `x` is plain, or the step has too many tokens for 32-bit offsets.
    """
    if not isinstance(x, Quantised):
        raise ValueError("linear_fp8: the triton kernel takes an FP8 pair; use reference")
    tokens, columns = x.codes.shape
    out = weight.scale.shape[0] * 32
    if tokens == 0:
        return torch.empty((0, out), dtype=torch.bfloat16, device=x.codes.device)
    return launch(x, weight, choose(tokens), segments(out, columns))


def refuses(*, arch: str, columns: int, out: int, quantised: bool, **_facts: object) -> str | None:
    """None if this kernel serves, else why not; facts as `Op.bind` passes them."""
    if arch != "sm90":
        return f"written for sm90, not {arch}"
    if not quantised:
        return "takes FP8 weights and input only"
    if columns % 128 or out % 64:
        return f"[{out}, {columns}] is no multiple of [64, 128]"
    return None
