"""Products of the routed experts on Hopper: FP4 becomes FP8 in registers, for the FP8 unit.

A tile is one or two halves of 16 rows a warp, times up to 128 sorted rows of the input, in one part
or two (32 and 16 for 48: wgmma would take any multiple of 8, tensors want powers of two). The unit
itself adds the 64 or 128 columns for which a row of the input has one scale (with about 14 bits);
times that scale they are added in fp32. The weight's scales are in its FP8 codes (packing.py). The
order is the same in all tiles, and so are the bits. Knows nothing of experts.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    warpgroup_mma,
    warpgroup_mma_wait,
)

# One word, as `packing` makes it: eight codes of one row. A size is a selector of a byte of the
# table $3, $7 of its row: eight FP8 numbers.
_DECODE = gl.constexpr("""
{
.reg .b32 m, t, u;
and.b32 m, $2, 0x77777777;
prmt.b32 t, $3, $7, m;
lop3.b32 $0, $2, 0x80808080, t, 0xEA;
shr.u32 m, m, 16;
prmt.b32 t, $3, $7, m;
shl.b32 u, $2, 4;
lop3.b32 $1, u, 0x80808080, t, 0xEA;
}
""")
_OPERANDS = gl.constexpr("=&r,=&r,r,r,r,r,r,r,r,r,r")
# FP8 numbers 0, 0.5, 1, 1.5 and 2, 3, 4, 6 times 2^-5, low byte first.
_SMALL, _LARGE = gl.constexpr(0x14100800), gl.constexpr(0x24201C18)


@gluon.jit
def weight_buffers(
    w_ptr, s_ptr, block,
    K: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, DEPTH: gl.constexpr,
):  # fmt: skip
    """Buffers of words and exponents of a weight tile, what fills them, and the first DEPTH copies.

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
    exponents = gl.allocate_shared_memory(gl.int32, [STAGES, ROWS], line)
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
        async_copy.async_copy_global_to_shared(exponents.index(s), s_ptr + s * 64)
    return words, exponents, w_ptr, s_ptr


@gluon.jit
def _fetch_weight(words, exponents, w_ptr, s_ptr, step, slot):
    """Start the copies of one step of 128 columns of the weight into buffer `slot`."""
    # One copy a buffer: between two of them into one allocation the compiler puts a barrier.
    async_copy.async_copy_global_to_shared(words.index(slot), w_ptr + step * 4096)
    async_copy.async_copy_global_to_shared(exponents.index(slot), s_ptr + step * 64)


@gluon.jit
def _fetch_input(xs, sizes, x_ptr, z_ptr, x_used, z_used, leap, step, slot):
    """The same of a part of the input: codes and scales."""
    async_copy.async_copy_global_to_shared(xs.index(slot), x_ptr + step * 128, mask=x_used)
    async_copy.async_copy_global_to_shared(sizes.index(slot), z_ptr + step * leap, mask=z_used)


@gluon.jit
def _input(
    x_ptr, z_ptr, stride, order_ptr, first, rows,
    K: gl.constexpr, CHOICES: gl.constexpr, TOKENS: gl.constexpr, RANGE: gl.constexpr,
    stages: gl.constexpr,
):  # fmt: skip
    """Buffers of TOKENS rows of the input and of their scales, and what fills them."""
    warps: gl.constexpr = gl.num_warps()
    parts: gl.constexpr = 128 // RANGE
    x_layout: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [warps, 1], [1, 0])
    z_layout: gl.constexpr = gl.BlockedLayout([1], [32], [warps], [0])
    swizzled: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    xs = gl.allocate_shared_memory(gl.float8e4nv, [stages, TOKENS, 128], swizzled)
    sizes = gl.allocate_shared_memory(gl.float32, [stages, parts * TOKENS], line)
    n = gl.arange(0, TOKENS, gl.SliceLayout(1, x_layout))
    x_row = gl.load(order_ptr + first + n, n < rows, 0) // CHOICES if CHOICES else first + n
    x_used = (n < rows)[:, None]
    column = gl.arange(0, 128, gl.SliceLayout(0, x_layout))
    x_ptr = x_ptr + ((x_row * K)[:, None] + column[None, :])
    piece = gl.arange(0, parts * TOKENS, z_layout)
    m = piece % TOKENS
    z_row = gl.load(order_ptr + first + m, m < rows, 0) // CHOICES if CHOICES else first + m
    z_ptr = z_ptr + (piece // TOKENS * stride + z_row)
    return xs, sizes, x_ptr, z_ptr, x_used, m < rows


@gluon.jit
def decoded(words, exponents, chunk: gl.constexpr, layout: gl.constexpr):
    """Half of a chunk [pieces, 16] -> FP8 [rows, 64] in wgmma's order, no data moved."""
    rows: gl.constexpr = words.shape[0] // 2
    codes = words.reshape([rows // 16, 8, 4, 2, 2, 4]).permute((0, 4, 1, 3, 2, 5))
    codes = gl.convert_layout(codes.reshape([rows, 32]), layout, assert_trivial=True)
    first, second = (
        (exponents >> (16 * chunk)) & 255,
        (exponents >> (16 * chunk + 8)) & 255,
    )
    group = (gl.arange(0, 32, gl.SliceLayout(0, layout)) // 16)[None, :]
    exponent = gl.where(group == 0, first[:, None], second[:, None])
    small = exponent * 0x08080800 + _SMALL  # a zero stays a zero
    large = exponent * 0x08080808 + _LARGE
    kinds: gl.constexpr = (gl.float8e4nv, gl.float8e4nv)
    low, high = gl.inline_asm_elementwise(_DECODE, _OPERANDS, [codes, small, large], kinds, True, 4)
    both = gl.join(low, high).reshape([rows, 2, 16, 2]).permute((0, 1, 3, 2))
    return gl.convert_layout(both.reshape([rows, 64]), layout, assert_trivial=True)


@gluon.jit
def _add(
    total, more, words, exponents, x, y, size, wide, none, empty, half: gl.constexpr,
    HALVES: gl.constexpr, first: gl.constexpr, CHUNKS: gl.constexpr, MORE: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """total + the sums of one or two chunks of 64 columns times the scales of the tokens."""
    pieces: gl.constexpr = gl.num_warps() * 32
    load: gl.constexpr = gl.BlockedLayout([1, 16], [32, 1], [gl.num_warps(), 1], [1, 0])
    word = words.slice((first * HALVES + half) * pieces, pieces).load(load)
    a = decoded(word, exponents, first, layout)
    if CHUNKS == 2:
        word = words.slice((HALVES + half) * pieces, pieces).load(load)
        both = gl.join(a, decoded(word, exponents, 1, layout)).permute((0, 2, 1))
        a = gl.convert_layout(both.reshape([a.shape[0], 128]), layout, assert_trivial=True)
    # All columns in one: each call makes the four warps of a group wait for one another.
    columns = x.slice(64 * first, 64 * CHUNKS, 1).permute((1, 0))
    sums = warpgroup_mma(a, columns, none, use_acc=False, is_async=True)
    if MORE:
        columns = y.slice(64 * first, 64 * CHUNKS, 1).permute((1, 0))
        others = warpgroup_mma(a, columns, empty, use_acc=False, is_async=True)
    # The assembler lets the other half's products run beside these additions.
    sums = warpgroup_mma_wait(0, [sums])
    total += sums * size
    if MORE:
        others = warpgroup_mma_wait(0, [others])
        more += others * wide
    return total, more


@gluon.jit
def _step(
    upper, lower, above, below, words, exponents, x, sizes, y, others, none, empty,
    HALVES: gl.constexpr, RANGE: gl.constexpr, MORE: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """Add 128 columns to both halves of both parts; `lower`, `above`, `below` may be unused."""
    height: gl.constexpr = upper.shape[0]
    tokens: gl.constexpr = x.shape[0]
    rows: gl.constexpr = gl.SliceLayout(1, layout)
    columns: gl.constexpr = gl.SliceLayout(0, upper.type.layout)
    beyond: gl.constexpr = gl.SliceLayout(0, above.type.layout)
    first = exponents.slice(0, height).load(rows)
    if HALVES == 2:
        second = exponents.slice(height, height).load(rows)
    for part in gl.static_range(128 // RANGE):
        size = sizes.slice(part * tokens, tokens).load(columns)[None, :]
        wide = others.slice(part * y.shape[0], y.shape[0]).load(beyond)[None, :]
        upper, above = _add(
            upper, above, words, first, x, y, size, wide, none, empty, 0,
            HALVES, part, RANGE // 64, MORE, layout,
        )  # fmt: skip
        if HALVES == 2:
            lower, below = _add(
                lower, below, words, second, x, y, size, wide, none, empty, 1,
                HALVES, part, RANGE // 64, MORE, layout,
            )  # fmt: skip
    return upper, lower, above, below


@gluon.jit
def product(
    words, exponents, w_ptr, s_ptr, x_ptr, z_ptr, stride, order_ptr, first, rows,
    K: gl.constexpr, CHOICES: gl.constexpr, TOKENS: gl.constexpr, MORE: gl.constexpr,
    DEPTH: gl.constexpr, HALVES: gl.constexpr, RANGE: gl.constexpr,
):  # fmt: skip
    """Halves of a weight tile times the tile's `rows` rows of the input, fp32; bases are missing.

    The input's rows are sorted if CHOICES is 0, else `order_ptr` names them. Its scales are
    [K / RANGE, stride]. Returns both halves of TOKENS rows, then of MORE rows.
    """
    warps: gl.constexpr = gl.num_warps()
    steps: gl.constexpr = K // 128
    stages: gl.constexpr = words.shape[0]
    SECOND: gl.constexpr = MORE or TOKENS
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, TOKENS, 32])
    thin: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, SECOND, 32])
    layout: gl.constexpr = gl.DotOperandLayout(0, mma, 4)
    leap = 128 // RANGE * stride
    xs, sizes, x_ptrs, z_ptrs, x_used, z_used = _input(
        x_ptr, z_ptr, stride, order_ptr, first, rows, K, CHOICES, TOKENS, RANGE, stages
    )
    if MORE:
        ys, others, y_ptrs, o_ptrs, y_used, o_used = _input(
            x_ptr, z_ptr, stride, order_ptr, first + TOKENS, rows - TOKENS,
            K, CHOICES, MORE, RANGE, stages,
        )  # fmt: skip
    else:
        ys, others = xs, sizes
    for s in gl.static_range(DEPTH):
        _fetch_input(xs, sizes, x_ptrs, z_ptrs, x_used, z_used, leap, s, s)
        if MORE:
            _fetch_input(ys, others, y_ptrs, o_ptrs, y_used, o_used, leap, s, s)
        async_copy.commit_group()
    none = gl.zeros([16 * warps, TOKENS], gl.float32, mma)
    empty = gl.zeros([16 * warps, SECOND], gl.float32, thin)
    upper, lower, above, below = none, none, empty, empty
    for step in range(steps):
        async_copy.wait_group(DEPTH - 1)
        ahead = step + DEPTH
        if ahead < steps:
            to = ahead % stages
            _fetch_weight(words, exponents, w_ptr, s_ptr, ahead, to)
            _fetch_input(xs, sizes, x_ptrs, z_ptrs, x_used, z_used, leap, ahead, to)
            if MORE:
                _fetch_input(ys, others, y_ptrs, o_ptrs, y_used, o_used, leap, ahead, to)
        async_copy.commit_group()
        slot = step % stages
        upper, lower, above, below = _step(
            upper, lower, above, below, words.index(slot), exponents.index(slot), xs.index(slot),
            sizes.index(slot), ys.index(slot), others.index(slot), none, empty,
            HALVES, RANGE, MORE, layout,
        )  # fmt: skip
    return upper, lower, above, below
