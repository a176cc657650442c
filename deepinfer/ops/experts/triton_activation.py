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


@gluon.jit
def _bf16_rounded(value):
    """fp32 rounded to bf16, as fp32."""
    return gl.inline_asm_elementwise(_ROUND, "=&r,=r,r,r", [value], gl.float32, True, 2)


@gluon.jit
def _fp8_rounded(value):
    """FP8 of groups of 32 rows of [rows, tokens] fp32, decoded again; bf16, exact."""
    rows: gl.constexpr = value.shape[0]
    tokens: gl.constexpr = value.shape[1]
    groups = value.reshape([rows // 32, 32, tokens])
    size = gl.maximum(gl.max(gl.abs(groups), 1), 1e-4)
    bits = size.to(gl.int32, bitcast=True)
    exponent = (bits >> 23) - 8 + ((bits & 0x7FFFFF) > 0x600000).to(gl.int32)  # 448 = 1.75 * 2^8
    scale = gl.expand_dims((exponent << 23).to(gl.float32, bitcast=True), 1)
    inverse = gl.expand_dims(((254 - exponent) << 23).to(gl.float32, bitcast=True), 1)
    codes = (groups * inverse).to(gl.float8e4nv)
    return (codes.to(gl.float32) * scale).to(gl.bfloat16).reshape([rows, tokens])


@gluon.jit
def store(value, out_ptr, first, rows, block, SIZE: gl.constexpr):
    """Write a tile [rows of the weight, tokens] into rows `first`... of [*, SIZE]."""
    height: gl.constexpr = value.shape[0]
    tokens: gl.constexpr = value.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([8, 1], [4, 8], [1, gl.num_warps()], [0, 1])
    value = gl.convert_layout(value, layout)
    column = block * height + gl.arange(0, height, gl.SliceLayout(1, layout))
    n = gl.arange(0, tokens, gl.SliceLayout(0, layout))
    at = (first + n).to(gl.int64) * SIZE
    gl.store(out_ptr + (at[None, :] + column[:, None]), value, (n < rows)[None, :])


@gluon.jit
def activate(
    total, order_ptr, share_ptr, h_ptr, limit, first, rows, block, INNER: gl.constexpr
):  # fmt: skip
    """h = FP8-rounded bf16(silu(gate) * up * routing weight) of slabs of 8 gate and 8 up rows."""
    ROWS: gl.constexpr = total.shape[0]
    TOKENS: gl.constexpr = total.shape[1]
    both = _bf16_rounded(total).reshape([ROWS // 16, 2, 8, TOKENS]).permute((0, 2, 3, 1))
    gate, up = both.split()
    gate, up = gl.minimum(gate, limit), gl.minimum(gl.maximum(up, -limit), limit)
    value = (gate / (1 + gl.exp(-gate)) * up).reshape([ROWS // 2, TOKENS])
    columns: gl.constexpr = gl.SliceLayout(0, value.type.layout)
    m = gl.arange(0, TOKENS, columns)
    share = gl.load(share_ptr + gl.load(order_ptr + first + m, m < rows, 0), m < rows, 0.0)
    store(_fp8_rounded(_bf16_rounded(value * share[None, :])), h_ptr, first, rows, block, INNER)
