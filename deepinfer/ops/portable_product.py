"""Products with FP8 weights in plain Triton, for any GPU from SM90 on.

Codes become bf16 in registers, times their scale: exact, as it is a power of two. The input is bf16
(decoded before, exactly, if it is an FP8 pair). K is cut into segments by the shape of the weight
alone; sums of a segment run in ascending K in the tensor cores, segments are added first to last:
by a second launch, or with many tokens by the program that made them all. The weight is always the
left operand with the same rows a program, so that the same instructions run for any number of
tokens. Knows nothing of what is multiplied.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.language.target_info import cuda_capability_geq

from deepinfer.ops.formats import Fp8Weight, Quantised

_SCALES = (10, 134)  # E8M0 bytes whose decoded codes, and whose own factor below, fit into bf16
_STEP = 128  # columns at a time
_ROWS = 128  # of the weight a program
_PROGRAMS = 240  # wanted; nearly two for each multiprocessor of an H200
_LEAST_STEPS = 3  # of a segment
_APART_TOKENS = 256  # up to here each segment is a program of its own
_BLOCK = 1024


class Tile(NamedTuple):
    """How a program works: `tokens` at a time, warps, buffers in flight, columns a `step`, and
    whether it makes all segments of K (`whole`) or one. Any gives the same bits."""

    tokens: int
    warps: int
    stages: int
    step: int = _STEP
    whole: bool = False


# Measured on one H200.
_NARROW = (Tile(16, 4, 5), Tile(32, 4, 4), Tile(64, 8, 3))
_WIDE, _ALL_SEGMENTS = Tile(128, 8, 4, 64), Tile(64, 4, 3, 64, True)


def segments(out: int, columns: int, groups: int = 1) -> int:
    """Segments of K: enough programs for the device, none shorter than three steps.

    Args:
        out: rows of the weight, a group.
        columns: K, a multiple of 128.
        groups: of rows that multiply columns of their own.
    """
    steps, tiles = columns // _STEP, groups * -(-out // _ROWS)
    counts = [n for n in range(1, max(1, steps // _LEAST_STEPS) + 1) if steps % n == 0]
    return min((n for n in counts if n * tiles >= _PROGRAMS), default=max(counts))


def choose(tokens: int, count: int) -> Tile:
    """The narrowest tile that holds all tokens, else one of which two fit on a multiprocessor.

    Args:
        tokens: of the input.
        count: segments of K. With many tokens a program that makes one sum at a time has room for
            128 of them.
    """
    if tokens <= 64:
        return next(tile for tile in _NARROW if tokens <= tile.tokens)
    return _ALL_SEGMENTS if count > 1 and tokens > _APART_TOKENS else _WIDE


@triton.jit
def _decoded(codes, factor):
    """E4M3 bytes as bf16 times `factor` 2^-120: sign, exponent and mantissa moved into place make
    the value times 2^-120, also of subnormal codes."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 a, b, c, d;
        prmt.b32 a, $2, 0, 0x1404;
        prmt.b32 b, $2, 0, 0x3424;
        and.b32 c, a, 0x80008000;
        and.b32 d, b, 0x80008000;
        shr.b32 a, a, 4;
        shr.b32 b, b, 4;
        lop3.b32 a, a, 0x07f007f0, c, 0xEA;
        lop3.b32 b, b, 0x07f007f0, d, 0xEA;
        mul.bf16x2 $0, a, $3;
        mul.bf16x2 $1, b, $4;
        }""",
        "=r,=r,r,r,r",
        [codes, factor],
        dtype=tl.bfloat16,
        is_pure=True,
        pack=4,
    )


@triton.jit
def awaited(sums):
    """The sums, once they are made, where their left operand lies in registers (before SM100).

    Triton 3.6 would let the unit work on across the end of a step, and the next step's codes would
    come into registers that it still reads. So something must take the sums: no instruction.
    """
    if cuda_capability_geq(10):
        return sums
    return tl.inline_asm_elementwise("", "=f,0", [sums], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit(do_not_specialize=["tokens", "steps", "groups", "segments"])
def _product(
    x_ptr, w_ptr, s_ptr, out_ptr, tokens, out, steps, groups, segments,
    WHOLE: tl.constexpr, EVEN: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """out = x w^T of some rows and tokens: of one segment of K, or the sum of all.

    Sizes are no constants, so that few variants are compiled; `steps` of STEP columns are K.
    """
    gdc_launch_dependents()
    # Neighbouring programs share rows of the weight, so that it is read from memory once.
    tiles, tile, number = tl.cdiv(out, ROWS), tl.program_id(1), tl.program_id(2)
    group, first = tile // tiles, tile % tiles * ROWS
    row, length = group * out + first, steps // segments
    start = number * length
    w_ptr += (row.to(tl.int64) * steps + start) * STEP
    s_ptr += (row // 32 * steps + start) * (STEP // 32)
    x_ptr += (group * steps + start) * STEP
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    r, k, g = tl.arange(0, ROWS), tl.arange(0, STEP), tl.arange(0, STEP // 32)
    w_at = r[:, None] * (steps * STEP) + k[None, :]
    s_at = (r // 32)[:, None] * (steps * (STEP // 32)) + g[None, :]
    x_at = token[None, :] * (groups * steps * STEP) + k[:, None]
    here, inside = (token < tokens)[None, :], (first + r < out)[:, None]
    gdc_wait()
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    for _ in range(segments if WHOLE else 1):
        part = tl.zeros([ROWS, TOKENS], tl.float32)
        for step in range(length):
            if EVEN:
                w = tl.load(w_ptr + step * STEP + w_at)
                s = tl.load(s_ptr + step * (STEP // 32) + s_at)
            else:
                w = tl.load(w_ptr + step * STEP + w_at, inside, 0)
                s = tl.load(s_ptr + step * (STEP // 32) + s_at, inside, 0)
            x = tl.load(x_ptr + step * STEP + x_at, here, 0.0)
            w = tl.reshape(w, (ROWS, STEP // 64, 4, 8, 2))  # see `pack`
            w = tl.reshape(tl.permute(w, (0, 1, 3, 2, 4)), (ROWS, STEP))
            factor = ((s.to(tl.int16) + 120) << 7).to(tl.bfloat16, bitcast=True)
            factor = tl.broadcast_to(factor[:, :, None], (ROWS, STEP // 32, 32))
            part = awaited(tl.dot(_decoded(w, tl.reshape(factor, (ROWS, STEP))), x, part))
        total = total + part if WHOLE else part
        w_ptr += length * STEP
        s_ptr += length * (STEP // 32)
        x_ptr += length * STEP
    out_ptr += number.to(tl.int64) * tokens * (groups * out)  # 0 if one program makes all segments
    at = token.to(tl.int64)[None, :] * (groups * out) + (row + r)[:, None]
    tl.store(out_ptr + at, total.to(out_ptr.dtype.element_ty), here & inside)


@triton.jit(do_not_specialize=["tokens"])
def _add(part_ptr, out_ptr, tokens, OUT: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """out = the sum of the segments, first to last."""
    gdc_wait()
    gdc_launch_dependents()
    size = tokens.to(tl.int64) * OUT  # of a known divisor, so that loads take 16 bytes
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for s in tl.static_range(SEGMENTS):
        total += tl.load(part_ptr + s * size + at, at < size, 0.0)
    tl.store(out_ptr + at, total.to(tl.bfloat16), at < size)


@triton.jit
def _decode(codes_ptr, bytes_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """bf16 values of an FP8 pair: exact."""
    gdc_wait()
    gdc_launch_dependents()
    group = tl.program_id(0).to(tl.int64) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    at = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = group * 32 < size
    codes = tl.load(codes_ptr + at, inside[:, None], 0).to(tl.float8e4nv, bitcast=True)
    exponent = tl.load(bytes_ptr + group, inside, 0).to(tl.int32) << 23
    value = codes.to(tl.float32) * exponent.to(tl.float32, bitcast=True)[:, None]
    tl.store(out_ptr + at, value.to(tl.bfloat16), inside[:, None])


def decoded(pair: Quantised) -> Tensor:
    """bf16 [tokens, K] of a contiguous FP8 pair; exact for scales that the quantiser makes."""
    values = torch.empty(pair.codes.shape, dtype=torch.bfloat16, device=pair.codes.device)
    if size := values.numel():
        _decode[(triton.cdiv(size, _BLOCK),)](
            pair.codes, pair.scale, values, size, _BLOCK, num_warps=4, launch_pdl=True
        )
    return values


def pack(weight: Fp8Weight | Tensor) -> Fp8Weight:
    """Reorder columns so that what a thread takes of 64 of them are 16 neighbouring bytes.

    A thread of the left operand takes columns 2 j and 2 j + 1 of each 8; these come together.

    Args:
        weight: codes [out, K]; out a multiple of 32, K of 128.

    Raises:
        ValueError: the weight is not FP8, or a size or scale does not fit the kernel.
    """
    if not isinstance(weight, Fp8Weight):
        raise ValueError("the portable kernels take FP8 weights only; use reference")
    out, columns = weight.codes.shape
    if reason := refuses_shape(out, columns):
        raise ValueError(f"{reason}; use reference")
    low, high = (int(x) for x in weight.scale.aminmax())
    if low < _SCALES[0] or high > _SCALES[1]:
        raise ValueError(f"scale bytes {low} to {high} go beyond {_SCALES}; use reference")
    codes = weight.codes.view(out, columns // 64, 8, 4, 2).transpose(2, 3)
    return Fp8Weight(codes.reshape(out, columns), weight.scale.contiguous())


def refuses_shape(out: int, columns: int) -> str | None:
    """None if the kernel takes a weight [out, K], else why not."""
    if out % 32 or columns % _STEP:
        return f"[{out}, {columns}] is no multiple of [32, {_STEP}]"
    return None


def launch(x: Tensor, weight: Fp8Weight, groups: int, tile: Tile) -> Tensor:
    """The product with a given tile; see `unsummed`."""
    (tokens, wide), (whole_out, columns) = x.shape, weight.codes.shape
    out = whole_out // groups
    count = segments(out, columns, groups)
    if tokens * wide >= 2**31:
        raise ValueError(f"portable product: {tokens} tokens in one call; split the step")
    if count == 1 or tile.whole:
        y = torch.empty((tokens, whole_out), dtype=torch.bfloat16, device=x.device)
    else:
        y = torch.empty((count, tokens, whole_out), dtype=torch.float32, device=x.device)
    programs = groups * triton.cdiv(out, _ROWS)
    if tokens:
        _product[(triton.cdiv(tokens, tile.tokens), programs, 1 if tile.whole else count)](
            x, weight.codes, weight.scale, y, tokens, out, columns // tile.step, groups, count,
            tile.whole and count > 1, out % _ROWS == 0, _ROWS, tile.tokens, tile.step,
            num_warps=tile.warps, num_stages=tile.stages, launch_pdl=True,
        )  # fmt: skip
    return y


def unsummed(x: Tensor | Quantised, weight: Fp8Weight, groups: int = 1) -> Tensor:
    """The product, or with up to some hundred tokens the sums of each segment of K.

    Args:
        x: [tokens, groups * K] bf16, or an FP8 pair; contiguous.
        weight: what `pack` returned, [groups * out, K]: a group multiplies its own columns.
        groups: of rows and columns.

    Returns:
        [tokens, groups * out] bf16, or fp32 [segments, tokens, groups * out] whose rounded sum that
        is.

    Raises:
        ValueError: the step has too many tokens for 32-bit offsets.
    """
    values = decoded(x) if isinstance(x, Quantised) else x
    rows, columns = weight.codes.shape
    count = segments(rows // groups, columns, groups)
    return launch(values, weight, groups, choose(values.shape[0], count))


def summed(parts: Tensor) -> Tensor:
    """bf16 [tokens, out] of what `unsummed` returned."""
    if parts.dim() == 2:
        return parts
    count, tokens, out = parts.shape
    y = torch.empty((tokens, out), dtype=torch.bfloat16, device=parts.device)
    if tokens:
        _add[(triton.cdiv(y.numel(), _BLOCK),)](
            parts, y, tokens, out, count, _BLOCK, num_warps=4, launch_pdl=True
        )
    return y
