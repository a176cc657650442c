"""Routed experts in plain Triton, for any GPU from SM90 on: FP4 codes become bf16 in registers.

Five launches: the input's FP8 codes become bf16 (exact); (token, choice) pairs are sorted by
expert; gate and up with the activation and its FP8 rounding; down; the sum by ascending expert. A
program multiplies 128 rows of the weight, always the left operand, with some sorted rows of the
input; K is summed from first to last, whatever the width of a tile. Knows nothing of how experts
are chosen. Meaning: reference.py.
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

from deepinfer.ops.experts.plan import most_tiles
from deepinfer.ops.experts.reference import ExpertWeights
from deepinfer.ops.experts.triton_pairs import combine, prepare
from deepinfer.ops.formats import Fp4Weight, Quantised
from deepinfer.ops.portable import refuses_arch
from deepinfer.ops.portable_product import awaited
from deepinfer.ops.triton_fp4 import fp4_pairs
from deepinfer.ops.triton_rows import fp8_groups

_ROWS = 128  # of the weight, a program
_STEP = 128  # columns at a time
_SHRUNK: tl.constexpr = tl.constexpr(32)  # weights are held smaller by 2^32, sums made larger
_SCALES = (34, 160)  # E8M0 bytes whose codes, made so much smaller, are normal bf16 numbers
_COMPARED = 4096  # so many (token, choice) pairs are sorted by comparing, more by counting
_TILES = 32  # tiles that one program of `prepare` names
_BLOCK = 1024


class Tile(NamedTuple):
    """Sorted rows of the input a program, its warps and buffers. Any gives the same bits."""

    tokens: int
    warps: int
    stages: int


TILES = (Tile(16, 4, 3), Tile(32, 4, 3), Tile(64, 4, 3))  # measured on one H200


def choose(tokens: int, k: int, experts: int) -> Tile:
    """The narrowest tile that holds a quarter more than an expert's mean share, or the widest."""
    share = tokens * k / experts * (1.25 if experts > k else 1.0)
    return next((tile for tile in TILES if share <= tile.tokens), TILES[-1])


@triton.jit
def _apart(column):
    """Where a column goes among its 128: the even ones first, as bytes of two codes want them.

    A thread of the matrix unit takes 2 of 8 neighbouring columns. Of both halves 32 columns of one
    scale, 16 bytes of the weight, go where one thread takes them.
    """
    byte = column % 128 // 2
    place = byte % 16 // 2 * 8 + byte // 16 * 2 + byte % 2
    return column // 128 * 128 + column % 2 * 64 + place


@triton.jit
def _decode(codes_ptr, bytes_ptr, out_ptr, size, K: tl.constexpr, BLOCK: tl.constexpr):
    """bf16 values of FP8 pairs [tokens, K], exact; even and odd columns `_apart`."""
    gdc_wait()
    gdc_launch_dependents()
    group = tl.program_id(0).to(tl.int64) * (BLOCK // 32) + tl.arange(0, BLOCK // 32)
    at = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = group * 32 < size
    codes = tl.load(codes_ptr + at, inside[:, None], 0).to(tl.float8e4nv, bitcast=True)
    scale = (tl.load(bytes_ptr + group, inside, 0).to(tl.int32) << 23).to(tl.float32, bitcast=True)
    value = (codes.to(tl.float32) * scale[:, None]).to(tl.bfloat16)
    tl.store(out_ptr + at // K * K + _apart(at % K), value, inside[:, None])


@triton.jit
def _placed(codes):
    """[rows, 4, 16] -> [rows, 64] in the order of `_apart`; no data move between threads."""
    rows: tl.constexpr = codes.shape[0]
    codes = tl.permute(tl.reshape(codes, (rows, 4, 8, 2)), (0, 2, 1, 3))
    return tl.reshape(codes, (rows, 64))


@triton.jit
def _product(
    x_ptr, x_row, x_used, w_ptr, s_ptr, w_row,
    K: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Rows `w_row` of an FP4 matrix times rows `x_row` of the input: fp32, over 2^32."""
    rows: tl.constexpr = w_row.shape[0]
    half: tl.constexpr = STEP // 2
    k, byte, group = tl.arange(0, half), tl.arange(0, half), tl.arange(0, STEP // 32)
    x_ptr += x_row[None, :] * K + k[:, None]
    w_ptr += w_row[:, None] * (K // 2) + byte[None, :]
    s_ptr += w_row[:, None] * (K // 32) + group[None, :]
    total = tl.zeros([rows, x_row.shape[0]], tl.float32)
    for step in tl.range(0, K // STEP, num_stages=STAGES):
        code = tl.load(w_ptr + step * half)
        scale = tl.load(s_ptr + step * (STEP // 32)).to(tl.int16)
        size = ((scale + (126 - _SHRUNK)) << 7).to(tl.bfloat16, bitcast=True)
        x_even = tl.load(x_ptr + step * STEP, x_used[None, :], 0.0)
        x_odd = tl.load(x_ptr + step * STEP + half, x_used[None, :], 0.0)
        even, odd = fp4_pairs(tl.reshape(code, (rows, STEP // 32, 16)), size[:, :, None])
        total = tl.dot(_placed(odd), x_odd, tl.dot(_placed(even), x_even, total))
        total = awaited(total)
    return total


@triton.jit
def _rounded(total):
    """Sums at their true size, rounded to bf16, as fp32."""
    grown: tl.constexpr = 2.0**_SHRUNK
    return (total * grown).to(tl.bfloat16).to(tl.float32)


@triton.jit(do_not_specialize=["limit"])
def _gate_up(
    x_ptr, w_ptr, s_ptr, order_ptr, expert_ptr, first_ptr, rows_ptr, share_ptr, h_ptr, limit,
    K: tl.constexpr, INNER: tl.constexpr, CHOICES: tl.constexpr, ROWS: tl.constexpr,
    TOKENS: tl.constexpr, STEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """h = what FP8 makes of bf16(silu(gate) * up * routing weight), as bf16, columns `_apart`."""
    gdc_wait()
    gdc_launch_dependents()
    tile, block = tl.program_id(1), tl.program_id(0)
    expert = tl.load(expert_ptr + tile).to(tl.int64)
    if expert < 0:
        return
    first, rows = tl.load(first_ptr + tile), tl.load(rows_ptr + tile)
    n, row = tl.arange(0, TOKENS), tl.arange(0, ROWS)
    used = n < rows
    entry = tl.load(order_ptr + first + n, used, 0)
    # Slabs of 8 gate and 8 up rows: on Hopper both come to one thread.
    w_row = row // 8 % 2 * INNER + block * (ROWS // 2) + row // 16 * 8 + row % 8
    total = _product(
        x_ptr, entry // CHOICES, used, w_ptr + expert * (INNER * K),
        s_ptr + expert * (2 * INNER * (K // 32)), w_row, K, STEP, STAGES,
    )  # fmt: skip
    both = tl.permute(tl.reshape(_rounded(total), (ROWS // 16, 2, 8, TOKENS)), (0, 2, 3, 1))
    gate, up = tl.split(both)
    gate, up = tl.minimum(gate, limit), tl.minimum(tl.maximum(up, -limit), limit)
    value = tl.trans(tl.reshape(tl.div_rn(gate, 1 + tl.exp(-gate)) * up, (ROWS // 2, TOKENS)))
    value = value * tl.load(share_ptr + entry, used, 0.0)[:, None]
    groups = tl.reshape(value.to(tl.bfloat16).to(tl.float32), (TOKENS * ROWS // 64, 32))
    codes, exponent = fp8_groups(groups)
    scale = (exponent << 23).to(tl.float32, bitcast=True)
    h = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32) * scale[:, None]
    column = _apart(block * (ROWS // 2) + tl.arange(0, ROWS // 2))
    at = (first + n)[:, None] * INNER + column[None, :]
    tl.store(h_ptr + at, tl.reshape(h, (TOKENS, ROWS // 2)).to(tl.bfloat16), used[:, None])


@triton.jit
def _down(
    h_ptr, w_ptr, s_ptr, expert_ptr, first_ptr, rows_ptr, y_ptr,
    K: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    STEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """y = bf16(h w2^T), sorted rows."""
    gdc_wait()
    gdc_launch_dependents()
    tile, block = tl.program_id(1), tl.program_id(0)
    expert = tl.load(expert_ptr + tile).to(tl.int64)
    if expert < 0:
        return
    first, rows = tl.load(first_ptr + tile), tl.load(rows_ptr + tile)
    n, row = tl.arange(0, TOKENS), block * ROWS + tl.arange(0, ROWS)
    used = n < rows
    total = _product(
        h_ptr, first + n, used, w_ptr + expert * (OUT * (K // 2)),
        s_ptr + expert * (OUT * (K // 32)), row, K, STEP, STAGES,
    )  # fmt: skip
    at = (first + n)[None, :] * OUT + row[:, None]
    tl.store(y_ptr + at, _rounded(total).to(tl.bfloat16), used[None, :])


def launch(
    x: Quantised,
    topk_idx: Tensor,
    topk_weights: Tensor,
    weights: ExpertWeights,
    limit: float,
    tile: Tile,
) -> Tensor:
    """The five kernels with a given tile; arguments and result as in `experts`."""
    (tokens, hidden), choices = x.codes.shape, topk_idx.shape[1]
    w13, w2 = weights
    assert isinstance(w13, Fp4Weight), "pack refuses others"
    assert isinstance(w2, Fp4Weight), "pack refuses others"
    experts, inner, entries = len(w13.codes), w2.codes.shape[2] * 2, tokens * choices
    if entries * max(hidden, inner) >= 2**31:
        raise ValueError(f"experts: {tokens} tokens in one call; split the step")
    device, count = x.codes.device, most_tiles(entries, experts, tile.tokens)
    plain = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=device)
    _decode[(triton.cdiv(plain.numel(), _BLOCK),)](
        x.codes, x.scale, plain, plain.numel(), hidden, _BLOCK, num_warps=4, launch_pdl=True
    )
    share = topk_weights.contiguous()
    order, place = torch.empty((2, entries), dtype=torch.int32, device=device)
    table = torch.empty((3, count), dtype=torch.int32, device=device)
    few = entries <= _COMPARED
    block = 16 if few else 64
    namers, sorters = triton.cdiv(count, _TILES), triton.cdiv(entries, block)
    # Without programs that share scales, whose results would be the third and fourth argument.
    prepare[(namers + sorters,)](
        x.codes, x.scale, x.codes.view(torch.float8_e4m3fn), share, topk_idx.contiguous(), order,
        place, *table, entries, namers, sorters, count, tokens, hidden, experts,
        triton.next_power_of_2(experts + 1), tile.tokens, _TILES, block, 512 if few else 0,
        _BLOCK, num_warps=4, launch_pdl=True,
    )  # fmt: skip
    h = torch.empty((entries, inner), dtype=torch.bfloat16, device=device)
    y = torch.empty((entries, hidden), dtype=torch.bfloat16, device=device)
    options = {"num_warps": tile.warps, "launch_pdl": True}
    _gate_up[(2 * inner // _ROWS, count)](
        plain, w13.codes, w13.scale, order, *table, share, h, limit,
        hidden, inner, choices, _ROWS, tile.tokens, _STEP, tile.stages, **options,
    )  # fmt: skip
    _down[(hidden // _ROWS, count)](
        h, w2.codes, w2.scale, *table, y,
        inner, hidden, _ROWS, tile.tokens, _STEP, tile.stages, **options,
    )  # fmt: skip
    out = torch.empty((tokens, hidden), dtype=torch.float32, device=device)
    combine[(tokens, triton.cdiv(hidden, _BLOCK))](
        y, place, out, hidden, choices, _BLOCK, 0, 0, num_warps=4, launch_pdl=True
    )
    return out


def experts(
    x: Tensor | Quantised,
    topk_idx: Tensor,
    topk_weights: Tensor,
    weights: ExpertWeights,
    *,
    limit: float,
) -> Tensor:
    """As the reference, for what `pack` returned.

    Args:
        x: [tokens, d] as a contiguous FP8 pair.
        topk_idx: [tokens, k] int32 or int64 expert ids, distinct in a row, -1 = none.
        topk_weights: [tokens, k] fp32 routing weights.
        weights: stacked FP4 experts.
        limit: config key `swiglu_limit`.

    Returns:
        [tokens, d] fp32.

    Raises:
        ValueError: `x` is plain, or the step has too many tokens for 32-bit offsets.
    """
    if not isinstance(x, Quantised):
        raise ValueError("experts: the portable kernels take an FP8 pair; use reference")
    tokens, choices = topk_idx.shape
    if tokens == 0:
        return torch.zeros(x.codes.shape, dtype=torch.float32, device=x.codes.device)
    tile = choose(tokens, choices, weights.w13.codes.shape[0])
    return launch(x, topk_idx, topk_weights, weights, limit, tile)


def _packed(weight: Fp4Weight | Tensor) -> Fp4Weight:
    if not isinstance(weight, Fp4Weight):
        raise ValueError("experts: the portable kernels take FP4 weights only; use reference")
    used = (weight.codes & 0x77).unflatten(-1, (-1, 16)).amax(-1) > 0
    scale = torch.where(used, weight.scale, 127)  # of zeros any scale is right
    low, high = (int(byte) for byte in scale.aminmax())
    if low < _SCALES[0] or high > _SCALES[1]:
        raise ValueError(
            f"experts: FP4 scale bytes {low} to {high} go beyond {_SCALES}; use reference"
        )
    return Fp4Weight(weight.codes.contiguous(), scale)


def pack(weights: ExpertWeights) -> ExpertWeights:
    """The codes as stored; scales of groups of zeros become 1.

    Raises:
        ValueError: the weights are not FP4, or a scale is too small or too large.
    """
    return ExpertWeights(_packed(weights.w13), _packed(weights.w2))


def refuses(*, arch: str, hidden: int, inner: int, quantised: bool, **_facts: object) -> str | None:
    """None if these kernels serve, else why not; facts as `Op.bind` passes them."""
    if why_not := refuses_arch(arch):
        return why_not
    if not quantised:
        return "takes FP4 weights and FP8 input only"
    if hidden % _STEP or inner % _STEP:
        return f"hidden {hidden} and inner {inner} must be multiples of {_STEP}"
    return None
