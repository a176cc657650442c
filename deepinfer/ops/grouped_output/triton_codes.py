"""FP8 codes to bf16 in registers, in the order of wgmma's left operand; see packing.py.

Knows nothing of what is multiplied.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

GROWN = gl.constexpr(2.0**26)  # decoded weights are held smaller by this factor
# A code's 7 low bits land on bf16 bits 10..4, so that it reads 2^-120 too small. The multiplier
# 2^(byte - 33) leaves a factor 2^-26, which the epilogue takes back exactly.
_WEIGHTS = gl.constexpr("""
{
.reg .b32 s, t;
shr.u32 s, $2, 4;
and.b32 t, $2, 0x80008000;
lop3.b32 s, s, 0x07F007F0, t, 0xEA;
mul.rn.bf16x2 $0, s, $3;
shl.b32 s, $2, 4;
shl.b32 t, $2, 8;
and.b32 t, t, 0x80008000;
lop3.b32 s, s, 0x07F007F0, t, 0xEA;
mul.rn.bf16x2 $1, s, $3;
}
""")
_OPERANDS = gl.constexpr("=&r,=&r,r,r,r,r,r")


@gluon.jit
def weights(words, scale, ROWS: gl.constexpr, layout: gl.constexpr):
    """Packed chunk [ROWS * 2, 16] -> bf16 [ROWS, 32] in wgmma's register order, no data moved."""
    codes = words.reshape([ROWS // 64, 4, 8, 4, 4, 2, 2]).permute((0, 1, 5, 2, 4, 3, 6))
    codes = gl.convert_layout(codes.reshape([ROWS, 32]), layout, assert_trivial=True)
    size = ((scale & 255) * 0x00800080 + 94 * 0x00800080)[:, None]
    return gl.inline_asm_elementwise(_WEIGHTS, _OPERANDS, [codes, size], gl.bfloat16, True, 4)
