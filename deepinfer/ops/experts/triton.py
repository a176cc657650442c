"""Routed experts on Hopper: FP4 weights stay packed and become bf16 in registers, for wgmma.

Four launches: sort the (token, choice) pairs by expert and decode the input; gate and up with the
activation and its FP8 rounding; down; sum by ascending expert. Products of decoded codes are exact
in bf16 and are added in fp32, in one order for every batch. Launches overlap (programmatic
dependent launch) where the plan says so: weights are fetched while the kernel before ends. Knows
nothing of how experts are chosen. Meaning: reference.py.
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

from deepinfer.ops.experts.packing import PackedExperts
from deepinfer.ops.experts.plan import Tile, Tiles, choose, most_tiles
from deepinfer.ops.experts.triton_activation import activate, store
from deepinfer.ops.experts.triton_pairs import combine, prepare
from deepinfer.ops.formats import Fp4Weight, Quantised

_COMPARED = 4096  # so many (token, choice) pairs are sorted by comparing, more by counting
_TILES = 32  # tiles that one program of `prepare` names
_DECODE_COLUMNS = 1024
_LEAST_COLUMNS = 512  # four steps, so that the copies ahead never pass the end


# One word, as `packing` makes it: for two columns (its halves) columns k, k + 32 of rows r, r + 8.
# A code's exponent and mantissa land on bf16 bits 8..6, so that it reads 2^-126 too small; the
# multiplier 2^(scale + 94) leaves a factor 2^-32, which the epilogue takes back exactly.
_DECODE = gl.constexpr("""
{
.reg .b32 t, u;
and.b32 $0, $4, 0x81C081C0;
shl.b32 t, $4, 3;
shl.b32 u, $4, 1;
and.b32 t, t, 0x01C001C0;
lop3.b32 $1, u, 0x80008000, t, 0xEA;
shl.b32 t, $4, 6;
and.b32 $2, t, 0x81C081C0;
shr.u32 t, $4, 4;
shl.b32 u, $4, 2;
and.b32 t, t, 0x01C001C0;
lop3.b32 $3, u, 0x80008000, t, 0xEA;
mul.rn.bf16x2 $0, $0, $5;
mul.rn.bf16x2 $1, $1, $7;
mul.rn.bf16x2 $2, $2, $9;
mul.rn.bf16x2 $3, $3, $11;
}
""")
_OPERANDS = gl.constexpr("=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r")


@gluon.jit
def _weight_buffers(
    w_ptr, s_ptr, block,
    K: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, DEPTH: gl.constexpr,
):  # fmt: skip
    """Buffers of words and scales of a weight tile, what fills them, and the first DEPTH copies.

    The copies are not yet a group: the input's copies will close it.
    """
    warps: gl.constexpr = gl.num_warps()
    steps: gl.constexpr = K // 128
    blocks: gl.constexpr = ROWS // 64
    bytes_layout: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [warps, 1], [1, 0])
    scale_layout: gl.constexpr = gl.BlockedLayout([1], [32], [warps], [0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    words = gl.allocate_shared_memory(gl.uint8, [STAGES, ROWS * 4, 16], plain)
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    scales = gl.allocate_shared_memory(gl.int32, [STAGES, ROWS], line)
    piece = gl.arange(0, ROWS * 4, gl.SliceLayout(1, bytes_layout))
    byte = gl.arange(0, 16, gl.SliceLayout(0, bytes_layout))
    thread = piece % (ROWS * 2)
    w_offset = piece // (ROWS * 2) * 2048 + thread // 128 * (steps * 4096) + thread % 128 * 16
    w_ptr += block.to(gl.int64) * (blocks * steps * 4096)
    w_ptr = w_ptr + (w_offset[:, None] + byte[None, :])
    row = gl.arange(0, ROWS, scale_layout)
    s_ptr += block.to(gl.int64) * (blocks * steps * 64)
    s_ptr = s_ptr + (row // 64 * (steps * 64) + row % 64)
    for s in gl.static_range(DEPTH):
        async_copy.async_copy_global_to_shared(words.index(s), w_ptr + s * 4096)
        async_copy.async_copy_global_to_shared(scales.index(s), s_ptr + s * 64)
    return words, scales, w_ptr, s_ptr


@gluon.jit
def _fetch(words, scales, xs, w_ptr, s_ptr, x_ptr, x_used, step, slot):
    """Start the copies of one step of 128 columns into buffer `slot`."""
    # One copy a buffer: between two of them into one allocation the compiler puts a barrier.
    async_copy.async_copy_global_to_shared(words.index(slot), w_ptr + step * 4096)
    async_copy.async_copy_global_to_shared(xs.index(slot), x_ptr + step * 128, mask=x_used)
    async_copy.async_copy_global_to_shared(scales.index(slot), s_ptr + step * 64)
    async_copy.commit_group()


@gluon.jit
def _decoded(words, scale, ROWS: gl.constexpr, layout: gl.constexpr):
    """Packed chunk [ROWS * 2, 16] -> bf16 [ROWS, 64] in wgmma's register order, no data moved."""
    columns = words.reshape([ROWS // 64, 4, 8, 4, 4, 2, 2]).permute((0, 1, 5, 2, 4, 3, 6))
    columns = gl.convert_layout(columns.reshape([ROWS, 32]), layout, assert_trivial=True)
    near = ((scale & 255) * 0x00800080 + 94 * 0x00800080)[:, None]
    far = (((scale >> 8) & 255) * 0x00800080 + 94 * 0x00800080)[:, None]
    kinds: gl.constexpr = (gl.bfloat16, gl.bfloat16)
    low, high = gl.inline_asm_elementwise(_DECODE, _OPERANDS, [columns, near, far], kinds, True, 4)
    both = gl.join(low, high).permute((0, 2, 1)).reshape([ROWS, 64])
    return gl.convert_layout(both, layout, assert_trivial=True)


@gluon.jit
def _product(
    words, scales, w_ptr, s_ptr, x_ptr, order_ptr, first, rows,
    K: gl.constexpr, CHOICES: gl.constexpr, ROWS: gl.constexpr, TOKENS: gl.constexpr,
    DEPTH: gl.constexpr, mma: gl.constexpr,
):  # fmt: skip
    """Weight tile times the tile's `rows` rows of the input, [ROWS, TOKENS] fp32.

    The input's rows are sorted if CHOICES is 0, else `order_ptr` names them.
    """
    warps: gl.constexpr = gl.num_warps()
    steps: gl.constexpr = K // 128
    stages: gl.constexpr = words.shape[0]
    late: gl.constexpr = stages - 2 == DEPTH
    a_layout: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    bytes_layout: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [warps, 1], [1, 0])
    x_layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [warps, 1], [1, 0])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    xs = gl.allocate_shared_memory(gl.bfloat16, [stages, TOKENS * 2, 64], swizzled)

    # Rows TOKENS and more of a buffer are the second 64 columns of a step.
    line = gl.arange(0, TOKENS * 2, gl.SliceLayout(1, x_layout))
    n = line % TOKENS
    x_row = gl.load(order_ptr + first + n, n < rows, 0) // CHOICES if CHOICES else first + n
    x_used = (n < rows)[:, None]
    x_offset = x_row * K + line // TOKENS * 64
    x_ptr = x_ptr + (x_offset[:, None] + gl.arange(0, 64, gl.SliceLayout(0, x_layout))[None, :])
    for s in gl.static_range(DEPTH):
        async_copy.async_copy_global_to_shared(xs.index(s), x_ptr + s * 128, mask=x_used)
        async_copy.commit_group()
    total = gl.zeros([ROWS, TOKENS], gl.float32, mma)
    for step in range(steps):
        async_copy.wait_group(DEPTH - 1)
        ahead = step + DEPTH
        if ahead < steps:
            to = ahead % stages
            _fetch(words, scales, xs, w_ptr, s_ptr, x_ptr, x_used, ahead, to)
        else:
            async_copy.commit_group()
        slot = step % stages
        scale = scales.index(slot).load(gl.SliceLayout(1, a_layout))
        for c in gl.static_range(2):
            word = words.index(slot).slice(c * ROWS * 2, ROWS * 2).load(bytes_layout)
            a = _decoded(word, scale >> (16 * c), ROWS, a_layout)
            x = xs.index(slot).slice(c * TOKENS, TOKENS).permute((1, 0))
            total = warpgroup_mma(a, x, total, is_async=True)
            if late:
                total = warpgroup_mma_wait(1, [total])
        if not late:
            total = warpgroup_mma_wait(0, [total])
    total = warpgroup_mma_wait(0, [total])
    return total * 4294967296.0  # takes back the factor of `_DECODE`


@gluon.jit
def _whole(
    words, scales, w_ptr, s_ptr, x_ptr, order_ptr, share_ptr, out_ptr, limit, first, rows, block,
    K: gl.constexpr, OUT: gl.constexpr, CHOICES: gl.constexpr, ROWS: gl.constexpr,
    TOKENS: gl.constexpr, DEPTH: gl.constexpr,
):  # fmt: skip
    """A tile from its first product to its last store."""
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, TOKENS, 16])
    total = _product(
        words, scales, w_ptr, s_ptr, x_ptr, order_ptr, first, rows,
        K, CHOICES, ROWS, TOKENS, DEPTH, mma,
    )  # fmt: skip
    if CHOICES:
        activate(total, order_ptr, share_ptr, out_ptr, limit, first, rows, block, OUT // 2)
    else:
        store(total.to(gl.bfloat16), out_ptr, first, rows, block, OUT)


@gluon.jit
def _multiply(
    x_ptr, w_ptr, s_ptr, order_ptr, expert_ptr, first_ptr, rows_ptr, share_ptr, out_ptr, limit,
    K: gl.constexpr, OUT: gl.constexpr, CHOICES: gl.constexpr,
    ROWS: gl.constexpr, TOKENS: gl.constexpr, LEAST: gl.constexpr, STAGES: gl.constexpr,
    DEPTH: gl.constexpr, OWN: gl.constexpr,
):  # fmt: skip
    """Gate and up with the activation (`CHOICES` > 0), or down, y = bf16(h w2^T); sorted rows.

    A tile with few rows multiplies a half or a quarter of TOKENS, LEAST at least.
    """
    HALF: gl.constexpr = TOKENS // 2 if LEAST <= TOKENS // 2 else TOKENS
    FOURTH: gl.constexpr = TOKENS // 4 if LEAST <= TOKENS // 4 else HALF
    block, tile = gl.program_id(0), gl.program_id(1)
    if CHOICES and not OWN:
        gdc_wait()  # the next kernel may read the tile table as soon as it starts
    gdc_launch_dependents()
    if OWN:
        expert = tile
    else:
        expert = gl.load(expert_ptr + tile)
        if expert < 0:
            gdc_wait()  # whoever waits for this kernel waits for the one before, too
            return
    w_ptr += expert.to(gl.int64) * (OUT * K // 2)
    s_ptr += expert.to(gl.int64) * (OUT * (K // 128))
    words, scales, w_ptr, s_ptr = _weight_buffers(w_ptr, s_ptr, block, K, ROWS, STAGES, DEPTH)
    if OWN or not CHOICES:  # the weights did not depend on the kernel before, the rest does
        gdc_wait()
    first, rows = gl.load(first_ptr + tile), gl.load(rows_ptr + tile)
    if rows == 0:
        async_copy.commit_group()  # a program must not end before its copies
        async_copy.wait_group(0)
        return
    if FOURTH < HALF and rows <= FOURTH:
        _whole(
            words, scales, w_ptr, s_ptr, x_ptr, order_ptr, share_ptr, out_ptr, limit, first, rows,
            block, K, OUT, CHOICES, ROWS, FOURTH, DEPTH,
        )  # fmt: skip
    elif HALF < TOKENS and rows <= HALF:
        _whole(
            words, scales, w_ptr, s_ptr, x_ptr, order_ptr, share_ptr, out_ptr, limit, first, rows,
            block, K, OUT, CHOICES, ROWS, HALF, DEPTH,
        )  # fmt: skip
    else:
        _whole(
            words, scales, w_ptr, s_ptr, x_ptr, order_ptr, share_ptr, out_ptr, limit, first, rows,
            block, K, OUT, CHOICES, ROWS, TOKENS, DEPTH,
        )  # fmt: skip


def launch(
    x: Quantised,
    topk_idx: Tensor,
    topk_weights: Tensor,
    weights: PackedExperts,
    limit: float,
    tiles: Tiles,
) -> Tensor:
    """The four kernels with given tiles; arguments and result as in `experts`."""
    tokens, hidden = x.codes.shape
    choices, experts = topk_idx.shape[1], weights.w13.codes.shape[0]
    entries, inner, width = tokens * choices, weights.inner, tiles.gate_up.tokens
    if entries * hidden >= 2**31:
        raise ValueError(f"experts: {tokens} tokens in one call; split the step")
    own, overlap = tiles.own, tiles.own or tiles.overlap
    assert not own or tokens <= width, "an expert's rows fill one tile"
    count = experts if own else most_tiles(entries, experts, width)
    device = x.codes.device
    plain = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=device)
    order, place = torch.empty((2, entries), dtype=torch.int32, device=device)
    expert, first, rows = table = torch.empty((3, count), dtype=torch.int32, device=device)
    few = entries <= _COMPARED
    block = 16 if few else 64
    namers, sorters = triton.cdiv(count, _TILES), triton.cdiv(entries, block)
    decoders = tokens * triton.cdiv(hidden, _DECODE_COLUMNS)
    prepare[(namers + sorters + decoders,)](
        x.codes, x.scale, plain, topk_idx.contiguous(), order, place, expert, first, rows,
        entries, namers, sorters, count, hidden, experts, triton.next_power_of_2(experts + 1),
        width, _TILES, block, 512 if few else 0, _DECODE_COLUMNS, own,
        num_warps=4, launch_pdl=overlap,
    )  # fmt: skip
    share = topk_weights.contiguous()

    def multiply(source: Tensor, weight: Fp4Weight, out: Tensor, tile: Tile, taken: int) -> Tensor:
        columns, size = source.shape[1], weight.codes.shape[1] * 64
        _multiply[(size // tile.rows, count)](
            source, weight.codes, weight.scale, order, *table.unbind(), share, out, limit,
            columns, size, taken, tile.rows, width, tiles.least or width, tile.stages, tile.ahead,
            own, num_warps=tile.warps, launch_pdl=overlap,
        )  # fmt: skip
        return out

    h = torch.empty((entries, inner), dtype=torch.bfloat16, device=device)
    y = torch.empty((entries, hidden), dtype=torch.bfloat16, device=device)
    multiply(plain, weights.w13, h, tiles.gate_up, choices)
    multiply(h, weights.w2, y, tiles.down, 0)
    out = torch.empty((tokens, hidden), dtype=torch.float32, device=device)
    combine[(tokens, triton.cdiv(hidden, 1024))](
        y, place, out, hidden, choices, 1024, num_warps=4, launch_pdl=overlap
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
    if hidden % 128 or inner % 128 or min(hidden, inner) < _LEAST_COLUMNS:
        return (
            f"hidden {hidden} and inner {inner} must be multiples of 128 from {_LEAST_COLUMNS} on"
        )
    return None
