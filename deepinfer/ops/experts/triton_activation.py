"""What follows the products of the routed experts on Hopper: SwiGLU, its roundings, stores.

Works on tiles [rows of the weight, tokens] in fp32, as wgmma leaves them. Knows nothing of how they
were multiplied.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# Two values at a time: a conversion of one costs four times as much.
_ROUND = gl.constexpr("""
{
.reg .b32 t;
cvt.rn.bf16x2.f32 t, $3, $2;
shl.b32 $0, t, 16;
and.b32 $1, t, 0xFFFF0000;
}
""")


# gate / (1 + exp(-gate)): numbers below the smallest normal one count as zero.
_SILU = gl.constexpr("""
{
.reg .f32 t;
mul.f32 t, $1, 0fBFB8AA3B;
ex2.approx.ftz.f32 t, t;
add.f32 t, t, 0f3F800000;
rcp.approx.ftz.f32 t, t;
mul.f32 $0, $1, t;
}
""")


@gluon.jit
def _bf16_rounded(value):
    """fp32 rounded to bf16, as fp32."""
    return gl.inline_asm_elementwise(_ROUND, "=&r,=r,r,r", [value], gl.float32, True, 2)


@gluon.jit
def _gathered(value):
    """The same tile; a thread has neighbouring rows of a token, so that little is exchanged."""
    rows: gl.constexpr = value.shape[0]
    each: gl.constexpr = min(32, rows * value.shape[1] // (32 * gl.num_warps()))
    lanes: gl.constexpr = rows // each
    layout: gl.constexpr = gl.BlockedLayout(
        [each, 1], [lanes, 32 // lanes], [1, gl.num_warps()], [0, 1]
    )
    return gl.convert_layout(value, layout)


@gluon.jit
def _quantised(value):
    """FP8 of [rows, tokens]: codes, and one fp32 scale of 64 rows [rows / 64, tokens].

    Codes are those of groups of 32 rows, moved to the larger scale of two groups; a code whose
    scale is smaller is made smaller and rounded again (`triton_pairs` says what that changes).
    """
    rows: gl.constexpr = value.shape[0]
    tokens: gl.constexpr = value.shape[1]
    groups = value.to(gl.float32).reshape([rows // 64, 2, 32, tokens])
    size = gl.maximum(gl.max(gl.abs(groups), 2), 1e-4)
    bits = size.to(gl.int32, bitcast=True)
    exponent = (bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000).to(gl.int32)  # 448 = 1.75 * 2^8
    most = gl.max(exponent, 1)
    down = gl.maximum(exponent - gl.expand_dims(most, 1) + 127, 0) << 23
    down = gl.expand_dims(down.to(gl.float32, bitcast=True), 2)
    inverse = gl.expand_dims(((254 - exponent) << 23).to(gl.float32, bitcast=True), 2)
    codes = ((groups * inverse).to(gl.float8e4nv).to(gl.float32) * down).to(gl.float8e4nv)
    return codes.reshape([rows, tokens]), (most << 23).to(gl.float32, bitcast=True)


@gluon.jit
def store(value, out_ptr, first, rows, block, SIZE: gl.constexpr):
    """Write a tile [rows of the weight, tokens] into rows `first`... of [*, SIZE]."""
    layout: gl.constexpr = gl.BlockedLayout([8, 1], [4, 8], [1, gl.num_warps()], [0, 1])
    _write(gl.convert_layout(value, layout), out_ptr, first, rows, block, SIZE)


@gluon.jit
def _write(value, out_ptr, first, rows, block, SIZE: gl.constexpr):
    """The same of a tile that lies well already."""
    height: gl.constexpr = value.shape[0]
    tokens: gl.constexpr = value.shape[1]
    layout: gl.constexpr = value.type.layout
    column = block * height + gl.arange(0, height, gl.SliceLayout(1, layout))
    n = gl.arange(0, tokens, gl.SliceLayout(0, layout))
    at = (first + n).to(gl.int64) * SIZE
    gl.store(out_ptr + (at[None, :] + column[:, None]), value, (n < rows)[None, :])


@gluon.jit
def _store_scales(scale, size_ptr, entries, first, rows, block):
    """Write the scales of a tile, of which each token has one or two, into [*, entries]."""
    groups: gl.constexpr = scale.shape[0]
    tokens: gl.constexpr = scale.shape[1]
    n = gl.arange(0, tokens, gl.SliceLayout(0, scale.type.layout))
    group = block * groups + gl.arange(0, groups, gl.SliceLayout(1, scale.type.layout))
    size_ptr += first
    gl.store(size_ptr + (n[None, :] + (group * entries)[:, None]), scale, (n < rows)[None, :])


@gluon.jit
def _gated(total, share, limit):
    """bf16(silu(gate) * up * routing weight) of slabs of 8 gate and 8 up rows."""
    rows: gl.constexpr = total.shape[0]
    tokens: gl.constexpr = total.shape[1]
    both = _bf16_rounded(total).reshape([rows // 16, 2, 8, tokens]).permute((0, 2, 3, 1))
    gate, up = both.split()
    gate, up = gl.minimum(gate, limit), gl.minimum(gl.maximum(up, -limit), limit)
    silu = gl.inline_asm_elementwise(_SILU, "=f,f", [gate], gl.float32, True, 1)
    value = (silu * up).reshape([rows // 2, tokens])
    share = gl.convert_layout(share, gl.SliceLayout(0, value.type.layout))
    return (value * share[None, :]).to(gl.bfloat16)


@gluon.jit
def activate(
    upper, lower, share, h_ptr, size_ptr, entries, limit, first, rows, block,
    HALVES: gl.constexpr, INNER: gl.constexpr,
):  # fmt: skip
    """FP8 of h = bf16(silu(gate) * up * routing weight), scales as fp32 [INNER / 64, entries]."""
    height: gl.constexpr = upper.shape[0]
    tokens: gl.constexpr = upper.shape[1]
    value = _gathered(_gated(upper, share, limit))
    if HALVES == 2:
        both = gl.join(value, _gathered(_gated(lower, share, limit))).permute((2, 0, 1))
        # Moves no data between threads, but neighbouring rows into neighbouring registers.
        value = gl.convert_layout(both.reshape([height, tokens]), value.type.layout)
    codes, scale = _quantised(value)
    _write(codes, h_ptr, first, rows, block, INNER)
    _store_scales(scale, size_ptr, entries, first, rows, block)
