"""FP8 linear layer on Hopper: codes go to the FP8 tensor cores as stored.

Each group of 32 columns is one wgmma; its sum times both scales is added in fp32, so that scales
never round. (The unit itself sums the 32 exact products with about 14 bits.) K is cut into segments
that depend on the weight alone. Each segment is a program and a second launch adds them; with many
tokens one program adds them itself: the same order, the same bits. Up to 32 tokens the weight is
the left operand (here), beyond the tokens are (triton_segment.py, triton_left.py, triton_wide.py).
Launches overlap (programmatic dependent launch): the next one reads its weight while this one ends.
Knows nothing of what it projects. Meaning: reference.py.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.formats import Fp8Weight, Quantised
from deepinfer.ops.linear_fp8.plan import Tile, choose, segments
from deepinfer.ops.linear_fp8.triton_left import input_left, start_group
from deepinfer.ops.linear_fp8.triton_segment import segment
from deepinfer.ops.linear_fp8.triton_wide import wide
from deepinfer.ops.triton_rows import sum_quantise

_ADD_COLUMNS = 512
_SCALES = (24, 134)  # E8M0 bytes that, added to any of the input, stay within a byte
_LEAST_COLUMNS = 256  # Triton 3.6 fails to compile the loop of a single step


class PackedLinear(NamedTuple):
    """One weight in tiles that lie in one piece.

    codes [out / 64, K / 128, 64, 128] uint8; scale [out / 32, K / 128] int32, four bytes a step,
    each less 127: adding a word of the input's scale bytes multiplies the scales of four groups.
    """

    codes: Tensor
    scale: Tensor


def pack(weight: Fp8Weight | Tensor) -> PackedLinear:
    """Cut a weight into tiles of 64 rows and 128 columns; no code changes.

    Args:
        weight: codes [out, K], both multiples of 128, K at least 256. (Some tiles have 128 rows:
            64 rows of a weight would be left unwritten.)

    Raises:
        ValueError: the weight is not FP8, or a size does not fit the tiles.
    """
    if not isinstance(weight, Fp8Weight):
        raise ValueError("linear_fp8: the triton kernel takes FP8 weights only; use reference")
    out, columns = weight.codes.shape
    if out % 128 or columns % 128 or columns < _LEAST_COLUMNS:
        raise ValueError(
            f"linear_fp8: [{out}, {columns}] is no multiple of [128, 128] with at least "
            f"{_LEAST_COLUMNS} columns; use reference"
        )
    codes = weight.codes.view(out // 64, 64, columns // 128, 128).transpose(1, 2).contiguous()
    low, high = (int(x) for x in weight.scale.aminmax())
    if low < _SCALES[0] or high > _SCALES[1]:
        raise ValueError(f"linear_fp8: scale bytes {low} to {high} go beyond {_SCALES}")
    scale = weight.scale.contiguous().view(torch.int32) - 0x7F7F7F7F
    codes[-1, -1, -1, -1].item()  # waits for the copy: `_linear` reads weights before it waits
    return PackedLinear(codes, scale)


@gluon.jit
def _fetch_input(xs, scales, x_ptr, s_ptr, x_used, s_used, step, slot):
    """Start the copies of one step of the input into buffer `slot`; closes the group of copies."""
    async_copy.async_copy_global_to_shared(xs.index(slot), x_ptr + step * 128, mask=x_used)
    async_copy.async_copy_global_to_shared(scales.index(slot), s_ptr + step, mask=s_used)
    async_copy.commit_group()


@gluon.jit
def _scaled(total, product, scales, group: gl.constexpr):
    """total + product * scale, where a word of `scales` holds the exponents of four groups."""
    bits = scales >> 1 if group == 3 else scales << (23 - 8 * group)
    size = (bits & 0x7F800000).to(gl.float32, bitcast=True)
    size = gl.expand_dims(gl.expand_dims(size, 1), 2)
    return total + product.reshape(total.shape) * size


@gluon.jit(do_not_specialize=["tokens"])
def _linear(
    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, part_ptr, out_ptr, tokens,
    K: gl.constexpr, OUT: gl.constexpr, ROWS: gl.constexpr, TOKENS: gl.constexpr,
    STAGES: gl.constexpr, SEGMENTS: gl.constexpr,
):  # fmt: skip
    """One tile of out = x W^T: bf16, or of several segments one, fp32."""
    warps: gl.constexpr = gl.num_warps()
    all_steps: gl.constexpr = K // 128
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, TOKENS, 32])
    copy: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [warps, 1], [1, 0])
    line: gl.constexpr = gl.BlockedLayout([1], [32], [warps], [0])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    ws = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, ROWS, 128], swizzled)
    xs = gl.allocate_shared_memory(gl.float8e4nv, [STAGES, TOKENS, 128], swizzled)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    scales = gl.allocate_shared_memory(gl.int32, [STAGES, TOKENS], plain)
    block, tile = gl.program_id(0), gl.program_id(1)
    number = gl.program_id(2)
    start = number * all_steps // SEGMENTS  # not a constant: Triton 3.6 fails on short known loops
    steps = (number + 1) * all_steps // SEGMENTS - start

    column = gl.arange(0, 128, gl.SliceLayout(0, copy))
    r = gl.arange(0, ROWS, gl.SliceLayout(1, copy))
    w_ptr += block.to(gl.int64) * (ROWS * K) + start * 8192
    w_ptr = w_ptr + ((r // 64 * (64 * K) + r % 64 * 128)[:, None] + column[None, :])
    n = tile * TOKENS + gl.arange(0, TOKENS, gl.SliceLayout(1, copy))
    x_ptr = x_ptr + ((n * K + start * 128)[:, None] + column[None, :])
    m = tile * TOKENS + gl.arange(0, TOKENS, line)
    s_ptr = x_scale_ptr + (m * all_steps + start)
    x_used, s_used = (n < tokens)[:, None], m < tokens
    # Sums as [16 rows of a warp, row bit 3, 8 rows, tokens]: one scale serves two registers.
    none = gl.zeros([ROWS, TOKENS], gl.float32, mma)
    part = none.reshape([ROWS // 16, 2, 8, TOKENS])
    thin: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, part.type.layout))
    row = block * ROWS + 16 * gl.arange(0, ROWS // 16, gl.SliceLayout(1, thin))
    w_scale_ptr = w_scale_ptr + (row // 32 * all_steps + start)

    # The weight does not depend on the kernel before, so its copies start before that has ended.
    gdc_launch_dependents()
    for s in gl.static_range(STAGES - 1):
        if s < steps:
            async_copy.async_copy_global_to_shared(ws.index(s), w_ptr + s * 8192)
    following = gl.load(w_scale_ptr)
    gdc_wait()
    for s in gl.static_range(STAGES - 1):
        if s < steps:
            _fetch_input(xs, scales, x_ptr, s_ptr, x_used, s_used, s, s)
        else:
            async_copy.commit_group()
    for step in range(steps):
        async_copy.wait_group(STAGES - 2)
        w_scale, slot = following, step % STAGES
        ahead = step + STAGES - 1
        if ahead < steps:
            w_slot = ws.index(ahead % STAGES)
            async_copy.async_copy_global_to_shared(w_slot, w_ptr + ahead * 8192)
            _fetch_input(xs, scales, x_ptr, s_ptr, x_used, s_used, ahead, ahead % STAGES)
        else:
            async_copy.commit_group()
        following = gl.load(w_scale_ptr + gl.minimum(step + 1, steps - 1))
        x_scale = scales.index(slot).load(gl.SliceLayout(0, thin))
        both = x_scale[None, :] + w_scale[:, None]
        # One group's product runs while the one before it is scaled.
        w, x = ws.index(slot), xs.index(slot)
        first = start_group(w, x, none, 0)
        second = start_group(w, x, none, 1)
        first = warpgroup_mma_wait(1, [first])
        part = _scaled(part, first, both, 0)
        third = start_group(w, x, none, 2)
        second = warpgroup_mma_wait(1, [second])
        part = _scaled(part, second, both, 1)
        fourth = start_group(w, x, none, 3)
        third = warpgroup_mma_wait(1, [third])
        part = _scaled(part, third, both, 2)
        fourth = warpgroup_mma_wait(0, [fourth])
        part = _scaled(part, fourth, both, 3)

    layout: gl.constexpr = gl.BlockedLayout([8, 1], [4, 8], [1, warps], [0, 1])
    out_row = block * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    token = tile * TOKENS + gl.arange(0, TOKENS, gl.SliceLayout(0, layout))
    at = (token.to(gl.int64) * OUT)[None, :] + out_row[:, None]
    inside = (token < tokens)[None, :]
    value = gl.convert_layout(part.reshape([ROWS, TOKENS]), layout)
    if SEGMENTS > 1:
        segment_part = part_ptr + number * (tokens.to(gl.int64) * OUT)
        gl.store(segment_part + at, value, inside)
    else:
        gl.store(out_ptr + at, value.to(gl.bfloat16), inside)


@triton.jit(do_not_specialize=["tokens"])
def _add(part_ptr, out_ptr, tokens, OUT: tl.constexpr, SEGMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """out = bf16 of the sum of the segments, first to last."""
    gdc_wait()
    gdc_launch_dependents()
    size = tokens * OUT  # a known multiple of 128, so that loads take 16 bytes
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(part_ptr + at, at < size, 0.0) + 0.0  # as from zero: no negative zero
    for s in tl.static_range(1, SEGMENTS):
        total += tl.load(part_ptr + s * size.to(tl.int64) + at, at < size, 0.0)
    tl.store(out_ptr + at, total.to(tl.bfloat16), at < size)


def launch(x: Quantised, weight: PackedLinear, tile: Tile, count: int) -> Tensor:
    """The kernel with a given tile and number of segments; x and result as in `unsummed`."""
    tokens, columns = x.codes.shape
    out, device = weight.scale.shape[0] * 32, x.codes.device
    if tokens * columns >= 2**31:
        raise ValueError(f"linear_fp8: {tokens} tokens in one call; split the step")
    wide_tile = tile.input_left and (tile.tokens == 128 or (tile.copying and tile.rows == 256))
    sums = count if count > 1 and not wide_tile else 0
    parts = torch.empty((sums, tokens, out), dtype=torch.float32, device=device)
    y = torch.empty((0 if sums else tokens, out), dtype=torch.bfloat16, device=device)
    if not tokens:
        return y
    if tile.input_left:
        run = wide if wide_tile else segment if tile.copying else input_left
        run(x, weight.codes, weight.scale, parts if sums else y, tile, count)
        return parts if sums else y
    _linear[(out // tile.rows, triton.cdiv(tokens, tile.tokens), count)](
        x.codes.view(torch.float8_e4m3fn), x.scale.view(torch.int32),
        weight.codes.view(torch.float8_e4m3fn), weight.scale, parts, y, tokens,
        columns, out, tile.rows, tile.tokens, tile.stages, count,
        num_warps=tile.warps, maxnreg=tile.registers, launch_pdl=True,
    )  # fmt: skip
    return parts if sums else y


def unsummed(x: Quantised, weight: PackedLinear) -> Tensor:
    """The product, or with up to some hundred tokens the sums of each segment of K.

    Args:
        x: [tokens, K] as a contiguous FP8 pair.
        weight: what `pack` returned.

    Returns:
        [tokens, out] bf16, or fp32 [segments, tokens, out] whose rounded sum that is.
    """
    tokens, columns = x.codes.shape
    out = weight.scale.shape[0] * 32
    return launch(x, weight, choose(tokens, out, columns), segments(out, columns))


def summed(parts: Tensor) -> Tensor:
    """bf16 [tokens, out] of what `unsummed` returned."""
    if parts.dim() == 2:
        return parts
    count, tokens, out = parts.shape
    y = torch.empty((tokens, out), dtype=torch.bfloat16, device=parts.device)
    _add[(triton.cdiv(y.numel(), _ADD_COLUMNS),)](
        parts, y, tokens, out, count, _ADD_COLUMNS, num_warps=4, launch_pdl=True
    )
    return y


def linear_fp8(x: Tensor | Quantised, weight: PackedLinear) -> Tensor:
    """As the reference, with a packed weight.

    Args:
        x: [tokens, K] as a contiguous FP8 pair, or plain bf16 (it is then quantised).
        weight: what `pack` returned.

    Returns:
        [tokens, out] bf16.

    Raises:
        ValueError: the step has too many tokens for 32-bit offsets.
    """
    pair = x if isinstance(x, Quantised) else sum_quantise(x.contiguous())
    return summed(unsummed(pair, weight))


def refuses(
    *, arch: str, quantised: bool, linear_shapes: Iterable[tuple[int, int]], **_facts: object
) -> str | None:
    """None if this kernel serves all matrices [out, K] of the model, else why not."""
    if arch != "sm90":
        return f"written for sm90, not {arch}"
    if not quantised:
        return "takes FP8 weights and input only"
    for out, columns in linear_shapes:
        if out % 128 or columns % 128 or columns < _LEAST_COLUMNS:
            return (
                f"[{out}, {columns}] is no multiple of [128, 128] from {_LEAST_COLUMNS} columns on"
            )
    return None
