"""Decoding of packed E2M1 codes to bf16 in Triton, two at a time in one register.

Knows nothing of scale formats: callers bring scales as bf16 powers or numbers.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fp4_pairs(code, size):
    """Even and odd channels, bf16, of bytes of two E2M1 codes, times bf16 `size` and 2^-126.

    Exponent and mantissa of a code, moved to where bf16 has them, read 2^-126 too small.
    """
    return tl.inline_asm_elementwise(
        """
        {
        .reg .b32 pair, code;
        prmt.b32 pair, $4, 0, 0x1404;
        and.b32 code, pair, 0x70007000;
        shr.b32 code, code, 6;
        and.b32 $2, pair, 0x80008000;
        or.b32 $2, $2, code;
        mul.rn.bf16x2 $2, $2, $5;
        shl.b32 pair, pair, 4;
        and.b32 code, pair, 0x70007000;
        shr.b32 code, code, 6;
        and.b32 $0, pair, 0x80008000;
        or.b32 $0, $0, code;
        mul.rn.bf16x2 $0, $0, $5;
        prmt.b32 pair, $4, 0, 0x3424;
        and.b32 code, pair, 0x70007000;
        shr.b32 code, code, 6;
        and.b32 $3, pair, 0x80008000;
        or.b32 $3, $3, code;
        mul.rn.bf16x2 $3, $3, $6;
        shl.b32 pair, pair, 4;
        and.b32 code, pair, 0x70007000;
        shr.b32 code, code, 6;
        and.b32 $1, pair, 0x80008000;
        or.b32 $1, $1, code;
        mul.rn.bf16x2 $1, $1, $6;
        }
        """,
        "=&r,=&r,=&r,=&r,r,r,r",
        [code, size],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )
