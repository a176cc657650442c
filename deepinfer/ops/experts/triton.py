"""Routed experts on Hopper: FP4 weights stay packed and become FP8 in registers, for wgmma.

Four launches: sort the (token, choice) pairs by expert and share the input's scales; gate and up
with the activation and its FP8 rounding; down; sum by ascending expert. Few experts and tokens have
launches of their own (triton_few.py), and so have many tokens (triton_many.py). Sums are made in
one order for every batch (triton_product.py). Launches overlap (programmatic dependent launch)
where the plan says so: weights are fetched while the kernel before ends. Knows nothing of how
experts are chosen. Meaning: reference.py.
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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.experts.packing import PackedExperts, PackedMatrix
from deepinfer.ops.experts.plan import Tile, Tiles, choose, most_tiles
from deepinfer.ops.experts.triton_activation import activate, store
from deepinfer.ops.experts.triton_few import few
from deepinfer.ops.experts.triton_many import many
from deepinfer.ops.experts.triton_pairs import combine, prepare
from deepinfer.ops.experts.triton_product import product, weight_buffers
from deepinfer.ops.formats import Quantised

_COMPARED = 4096  # so many (token, choice) pairs are sorted by comparing, more by counting
_TILES = 32  # tiles that one program of `prepare` names
_INPUT_COLUMNS = 1024  # and columns whose scales one makes common
_LEAST_COLUMNS = 512  # four steps, so that the copies ahead never pass the end


@gluon.jit
def _finish(
    upper, lower, base_ptr, order_ptr, share_ptr, out_ptr, size_ptr, entries, limit, first, rows,
    block, OUT: gl.constexpr, CHOICES: gl.constexpr, HALVES: gl.constexpr,
):  # fmt: skip
    """From sums of a part of a tile to its last store."""
    height: gl.constexpr = upper.shape[0]
    row = gl.arange(0, height, gl.SliceLayout(1, upper.type.layout))
    base_ptr += block * (HALVES * height)
    upper = upper * gl.load(base_ptr + row)[:, None]
    if HALVES == 2:
        lower = lower * gl.load(base_ptr + height + row)[:, None]
    if CHOICES:
        m = gl.arange(0, upper.shape[1], gl.SliceLayout(0, upper.type.layout))
        share = gl.load(share_ptr + gl.load(order_ptr + first + m, m < rows, 0), m < rows, 0.0)
        activate(
            upper, lower, share, out_ptr, size_ptr, entries, limit, first, rows, block, HALVES,
            OUT // 2,
        )  # fmt: skip
    else:
        store(upper.to(gl.bfloat16), out_ptr, first, rows, HALVES * block, OUT)
        if HALVES == 2:
            store(lower.to(gl.bfloat16), out_ptr, first, rows, 2 * block + 1, OUT)


@gluon.jit
def _whole(
    words, exponents, w_ptr, s_ptr, base_ptr, x_ptr, z_ptr, stride, order_ptr, share_ptr, out_ptr,
    size_ptr, entries, limit, first, rows, block,
    K: gl.constexpr, OUT: gl.constexpr, CHOICES: gl.constexpr, TOKENS: gl.constexpr,
    MORE: gl.constexpr, DEPTH: gl.constexpr, HALVES: gl.constexpr, RANGE: gl.constexpr,
):  # fmt: skip
    """A tile from its first product to its last store."""
    upper, lower, above, below = product(
        words, exponents, w_ptr, s_ptr, x_ptr, z_ptr, stride, order_ptr, first, rows,
        K, CHOICES, TOKENS, MORE, DEPTH, HALVES, RANGE,
    )  # fmt: skip
    _finish(
        upper, lower, base_ptr, order_ptr, share_ptr, out_ptr, size_ptr, entries, limit,
        first, rows, block, OUT, CHOICES, HALVES,
    )  # fmt: skip
    if MORE:
        _finish(
            above, below, base_ptr, order_ptr, share_ptr, out_ptr, size_ptr, entries, limit,
            first + TOKENS, rows - TOKENS, block, OUT, CHOICES, HALVES,
        )  # fmt: skip


@gluon.jit(do_not_specialize=["stride", "entries"])
def _multiply(
    x_ptr, z_ptr, stride, w_ptr, s_ptr, base_ptr, order_ptr, expert_ptr, first_ptr, rows_ptr,
    share_ptr, out_ptr, size_ptr, entries, limit,
    K: gl.constexpr, OUT: gl.constexpr, CHOICES: gl.constexpr,
    ROWS: gl.constexpr, TOKENS: gl.constexpr, LEAST: gl.constexpr, STAGES: gl.constexpr,
    DEPTH: gl.constexpr, RANGE: gl.constexpr,
):  # fmt: skip
    """Gate and up with the activation (`CHOICES` > 0), or down, y = bf16(h w2^T); sorted rows.

    RANGE columns of the input share a scale. A tile with few rows multiplies a half or a quarter of
    TOKENS, LEAST at least; of 48 or 96 it multiplies two thirds, a third or a sixth.
    """
    HALVES: gl.constexpr = ROWS // (16 * gl.num_warps())
    MOST: gl.constexpr = TOKENS if TOKENS & (TOKENS - 1) == 0 else TOKENS * 2 // 3
    HALF: gl.constexpr = MOST // 2 if LEAST <= MOST // 2 else MOST
    FOURTH: gl.constexpr = MOST // 4 if LEAST <= MOST // 4 else HALF
    block, tile = gl.program_id(0), gl.program_id(1)
    if CHOICES:
        gdc_wait()  # the next kernel may read the tile table as soon as it starts
    gdc_launch_dependents()
    expert = gl.load(expert_ptr + tile)
    if expert < 0:
        gdc_wait()  # whoever waits for this kernel waits for the one before, too
        return
    w_ptr += expert.to(gl.int64) * (OUT * K // 2)
    s_ptr += expert.to(gl.int64) * (OUT * (K // 128))
    base_ptr += expert * OUT
    words, exponents, w_ptr, s_ptr = weight_buffers(w_ptr, s_ptr, block, K, ROWS, STAGES, DEPTH)
    if not CHOICES:  # the weights did not depend on the kernel before, the rest does
        gdc_wait()
    first, rows = gl.load(first_ptr + tile), gl.load(rows_ptr + tile)
    if FOURTH < HALF and rows <= FOURTH:
        _whole(
            words, exponents, w_ptr, s_ptr, base_ptr, x_ptr, z_ptr, stride, order_ptr, share_ptr,
            out_ptr, size_ptr, entries, limit, first, rows, block,
            K, OUT, CHOICES, FOURTH, 0, DEPTH, HALVES, RANGE,
        )  # fmt: skip
    elif HALF < MOST and rows <= HALF:
        _whole(
            words, exponents, w_ptr, s_ptr, base_ptr, x_ptr, z_ptr, stride, order_ptr, share_ptr,
            out_ptr, size_ptr, entries, limit, first, rows, block,
            K, OUT, CHOICES, HALF, 0, DEPTH, HALVES, RANGE,
        )  # fmt: skip
    elif MOST < TOKENS and rows > MOST:
        _whole(
            words, exponents, w_ptr, s_ptr, base_ptr, x_ptr, z_ptr, stride, order_ptr, share_ptr,
            out_ptr, size_ptr, entries, limit, first, rows, block,
            K, OUT, CHOICES, MOST, TOKENS - MOST, DEPTH, HALVES, RANGE,
        )  # fmt: skip
    else:
        _whole(
            words, exponents, w_ptr, s_ptr, base_ptr, x_ptr, z_ptr, stride, order_ptr, share_ptr,
            out_ptr, size_ptr, entries, limit, first, rows, block,
            K, OUT, CHOICES, MOST, 0, DEPTH, HALVES, RANGE,
        )  # fmt: skip


class Sorted(NamedTuple):
    """What `prepare` makes of a step.

    codes: FP8 [tokens, hidden], of one scale in 128 columns; sizes: these, fp32 [hidden / 128,
    tokens]; order: the (token, choice) pairs by expert; place: where each one is, -1 for none;
    table: expert, first row and number of rows of each tile.
    """

    codes: Tensor
    sizes: Tensor
    order: Tensor
    place: Tensor
    table: Tensor


def sort(x: Quantised, topk_idx: Tensor, experts: int, width: int, *, overlap: bool) -> Sorted:
    """The first kernel.

    Args:
        x: [tokens, hidden].
        topk_idx: [tokens, k].
        experts: number of experts.
        width: rows of a tile.
        overlap: as the plan says.
    """
    tokens, hidden = x.codes.shape
    entries, device = topk_idx.numel(), x.codes.device
    count = most_tiles(entries, experts, width)
    order, place = torch.empty((2, entries), dtype=torch.int32, device=device)
    made = Sorted(
        torch.empty((tokens, hidden), dtype=torch.float8_e4m3fn, device=device),
        torch.empty((hidden // 128, tokens), dtype=torch.float32, device=device),
        order,
        place,
        torch.empty((3, count), dtype=torch.int32, device=device),
    )
    few = entries <= _COMPARED
    block = 16 if few else 64
    namers, sorters = triton.cdiv(count, _TILES), triton.cdiv(entries, block)
    movers = tokens * triton.cdiv(hidden, _INPUT_COLUMNS)
    prepare[(namers + sorters + movers,)](
        x.codes, x.scale, made.codes, made.sizes, topk_idx.contiguous(), order, place, *made.table,
        entries, namers, sorters, count, tokens, hidden, experts,
        triton.next_power_of_2(experts + 1), width, _TILES, block, 512 if few else 0,
        _INPUT_COLUMNS, num_warps=4, launch_pdl=overlap,
    )  # fmt: skip
    return made


def launch(
    x: Quantised,
    topk_idx: Tensor,
    topk_weights: Tensor,
    weights: PackedExperts,
    limit: float,
    tiles: Tiles,
) -> Tensor:
    """All kernels with given tiles; arguments and result as in `experts`."""
    if tiles.own:
        return few(x, topk_idx, topk_weights, weights, limit, tiles.gate_up)
    tokens, hidden = x.codes.shape
    choices, experts = topk_idx.shape[1], weights.w13.codes.shape[0]
    entries, inner, width = tokens * choices, weights.inner, tiles.gate_up.tokens
    if entries * hidden >= 2**31:
        raise ValueError(f"experts: {tokens} tokens in one call; split the step")
    if tiles.copied:
        return many(x, topk_idx, topk_weights, weights, limit, tiles)
    made = sort(x, topk_idx, experts, width, overlap=tiles.overlap)
    device = x.codes.device
    share = topk_weights.contiguous()

    def multiply(
        source: Tensor, scale: Tensor, weight: PackedMatrix, out: Tensor, tile: Tile, taken: int
    ) -> None:
        columns, size = source.shape[1], weight.codes.shape[1] * 64
        _multiply[(size // tile.rows, made.table.shape[1])](
            source, scale, len(source), *weight, made.order, *made.table, share, out, h_sizes,
            entries, limit, columns, size, taken, tile.rows, width, tiles.least or width,
            tile.stages, tile.stages - 1, 128 if taken else 64,
            num_warps=tile.warps, maxnreg=tile.registers, launch_pdl=tiles.overlap,
        )  # fmt: skip

    h = torch.empty((entries, inner), dtype=torch.float8_e4m3fn, device=device)
    h_sizes = torch.empty((inner // 64, entries), dtype=torch.float32, device=device)
    y = torch.empty((entries, hidden), dtype=torch.bfloat16, device=device)
    multiply(made.codes, made.sizes, weights.w13, h, tiles.gate_up, choices)
    multiply(h, h_sizes, weights.w2, y, tiles.down, 0)
    out = torch.empty((tokens, hidden), dtype=torch.float32, device=device)
    combine[(tokens, triton.cdiv(hidden, 1024))](
        y, made.place, out, hidden, choices, 1024, 0, 0, num_warps=4, launch_pdl=tiles.overlap
    )
    return out


def experts(
    x: Tensor | Quantised,
    topk_idx: Tensor,
    topk_weights: Tensor,
    weights: PackedExperts,
    *,
    limit: float,
) -> Tensor:
    """As the reference, with packed weights.

    Args:
        x: [tokens, d] as a contiguous FP8 pair.
        topk_idx: [tokens, k] int32 or int64 expert ids, distinct in a row, -1 = none.
        topk_weights: [tokens, k] fp32 routing weights.
        weights: what `packing.pack` returned.
        limit: config key `swiglu_limit`.

    Returns:
        [tokens, d] fp32.

    Raises:
        ValueError: `x` is plain, or the step has too many tokens for 32-bit offsets.
    """
    if not isinstance(x, Quantised):
        raise ValueError("experts: the triton kernels take an FP8 pair; use reference")
    tokens, choices = topk_idx.shape
    if tokens == 0:
        return torch.zeros(x.codes.shape, dtype=torch.float32, device=x.codes.device)
    tiles = choose(tokens, choices, weights.w13.codes.shape[0])
    return launch(x, topk_idx, topk_weights, weights, limit, tiles)


def refuses(*, arch: str, hidden: int, inner: int, quantised: bool, **_facts: object) -> str | None:
    """None if these kernels serve, else why not; facts as `Op.bind` passes them."""
    if arch != "sm90":
        return f"written for sm90, not {arch}"
    if not quantised:
        return "takes FP4 weights and FP8 input only"
    if hidden % 256 or inner % 128 or min(hidden, inner) < _LEAST_COLUMNS:
        return (
            f"hidden {hidden} must be a multiple of 256, inner {inner} of 128, both from "
            f"{_LEAST_COLUMNS} on"
        )
    return None
