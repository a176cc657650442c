"""Coefficients of a boundary from partial products: a token's Sinkhorn in one thread.

Written in Gluon for its layouts; no instruction is Hopper's alone. Partial sums are added in an
order that neither the tokens of a program nor those of a call change. Knows nothing of streams.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@gluon.jit
def _inverse(x):
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], gl.float32, True, 1)


@gluon.jit
def _sigmoid(x):
    return _inverse(1 + gl.exp(-x))


@gluon.jit
def _halves(x, TOKENS: gl.constexpr, SIZE: gl.constexpr):
    """Both halves of each of TOKENS rows of SIZE numbers."""
    return gl.split(x.reshape([TOKENS, 2, SIZE // 2]).permute((0, 2, 1)))


@gluon.jit
def _four(x, TOKENS: gl.constexpr):
    """[TOKENS, 4] as four [TOKENS]."""
    even, odd = gl.split(x.reshape([TOKENS, 2, 2]))
    first, third = gl.split(even)
    second, fourth = gl.split(odd)
    return first, second, third, fourth


@gluon.jit
def _put(ptr, here, a, b, c, d):
    gl.store(ptr, a, here)
    gl.store(ptr + 1, b, here)
    gl.store(ptr + 2, c, here)
    gl.store(ptr + 3, d, here)


@gluon.jit
def _neighbours(x, TOKENS: gl.constexpr, SIZE: gl.constexpr):
    """Sum of each of TOKENS rows of SIZE numbers, neighbours first."""
    size: gl.constexpr = SIZE // 2
    x = gl.sum(x.reshape([TOKENS, size, 2]), 2)
    return gl.sum(x, 1) if size <= 2 else _neighbours(x, TOKENS, size)


@gluon.jit
def _shares(row, eps):
    """Softmax of four numbers, plus eps."""
    a, b, c, d = row
    most = gl.maximum(gl.maximum(a, b), gl.maximum(c, d))
    a, b, c, d = gl.exp(a - most), gl.exp(b - most), gl.exp(c - most), gl.exp(d - most)
    by = _inverse((a + b) + (c + d))
    return a * by + eps, b * by + eps, c * by + eps, d * by + eps


@gluon.jit
def _scaled(a, b, c, d, eps):
    """Four numbers over their sum and eps."""
    by = _inverse((a + b) + (c + d) + eps)
    return a * by, b * by, c * by, d * by


@gluon.jit(do_not_specialize=["tokens", "eps", "hc_eps"])
def split(
    part_ptr, square_ptr, base_ptr, scale_ptr, pre_ptr, post_ptr, comb_ptr, tokens, eps, hc_eps,
    K: gl.constexpr, PARTS: gl.constexpr, GROUP: gl.constexpr, SQUARES: gl.constexpr,
    ITERATIONS: gl.constexpr, TOKENS: gl.constexpr, BESIDE: gl.constexpr,
):  # fmt: skip
    """Coefficients of TOKENS tokens from parts [PARTS, tokens, 64]: of both terms of the projection
    32 rows each, 24 of them used. GROUP parts are added, the sums of each quarter of them, then the
    quarters, first to last. Of SQUARES sums of squares [SQUARES, tokens] neighbours are added
    first.

    With BESIDE all that is read was there before the launch before let this one start, and nothing
    of what that one makes is read. So the two run side by side; to wait at the end makes the end of
    this launch the end of both.
    """
    warps: gl.constexpr = gl.num_warps()
    wide: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [warps, 1], [1, 0])
    quarters: gl.constexpr = gl.BlockedLayout([1, 2, 4], [1, 32, 1], [warps, 1, 1], [2, 1, 0])
    terms: gl.constexpr = gl.BlockedLayout([1, 64], [32, 1], [warps, 1], [1, 0])
    own: gl.constexpr = gl.BlockedLayout([1, 32], [32, 1], [warps, 1], [1, 0])
    first = gl.program_id(0) * TOKENS
    line = gl.arange(0, 4 * TOKENS, gl.SliceLayout(1, wide))
    row = gl.arange(0, 64, gl.SliceLayout(0, wide))
    each: gl.constexpr = (PARTS // GROUP + 3) // 4  # sums a quarter; the last ones may have fewer
    token, number = first + line // 4, line % 4 * each
    at = part_ptr + ((number * GROUP * tokens + token).to(gl.int64) * 64)[:, None] + row[None, :]
    used = (token < tokens)[:, None] & (row % 32 < 24)[None, :]
    mine = first + gl.arange(0, TOKENS, gl.SliceLayout(1, own))
    column = gl.arange(0, 32, gl.SliceLayout(0, own))
    if SQUARES > 1:
        m = first + gl.arange(0, TOKENS, gl.SliceLayout(1, wide))
        square = gl.arange(0, SQUARES, gl.SliceLayout(0, wide))
        squares, squares_used = (square * tokens)[None, :] + m[:, None], (m < tokens)[:, None]
    base = gl.load(base_ptr + column, column < 24, 0.0)
    size = gl.load(scale_ptr + gl.minimum(column // 4, 2))
    if not BESIDE:
        gdc_wait()
    gdc_launch_dependents()
    step = tokens.to(gl.int64) * 64
    total = gl.zeros([4 * TOKENS, 64], gl.float32, wide)
    for p in gl.static_range(each):
        here = used & (number + p < PARTS // GROUP)[:, None]
        part = gl.load(at + (p * GROUP) * step, here, 0.0, cache_modifier=".cg")
        for g in gl.static_range(1, GROUP):
            part += gl.load(at + (p * GROUP + g) * step, here, 0.0, cache_modifier=".cg")
        total += part
    total = total.reshape([TOKENS, 4, 64]).permute((0, 2, 1))
    even, odd = gl.split(gl.convert_layout(total, quarters).reshape([TOKENS, 64, 2, 2]))
    zeroth, second = gl.split(even)
    first, third = gl.split(odd)
    total = zeroth + first + second + third
    high, low = _halves(gl.convert_layout(total, terms), TOKENS, 64)
    u = gl.convert_layout(high + low, own)
    if SQUARES == 1:
        square = gl.load(square_ptr + mine, mine < tokens, 1.0)
    else:
        square = gl.load(square_ptr + squares, squares_used, 1.0, cache_modifier=".cg")
        square = gl.convert_layout(_neighbours(square, TOKENS, SQUARES), mine.type.layout)
    norm = gl.rsqrt(square / K + eps)
    u = u * norm[:, None] * size[None, :] + base[None, :]
    gates, last = _halves(u, TOKENS, 32)
    gates, middle = _halves(gates, TOKENS, 16)
    last, _ = _halves(last, TOKENS, 16)
    pre, post = _halves(gates, TOKENS, 8)
    p0, p1, p2, p3 = _four(pre, TOKENS)
    q0, q1, q2, q3 = _four(post, TOKENS)
    token = gl.convert_layout(mine, p0.type.layout)
    here = token < tokens
    p0, p1, p2, p3 = _sigmoid(p0), _sigmoid(p1), _sigmoid(p2), _sigmoid(p3)
    _put(pre_ptr + token * 4, here, p0 + hc_eps, p1 + hc_eps, p2 + hc_eps, p3 + hc_eps)
    q0, q1, q2, q3 = _sigmoid(q0), _sigmoid(q1), _sigmoid(q2), _sigmoid(q3)
    _put(post_ptr + token * 4, here, 2 * q0, 2 * q1, 2 * q2, 2 * q3)
    a, b = _halves(middle, TOKENS, 8)
    c, d = _halves(last, TOKENS, 8)
    a0, a1, a2, a3 = _shares(_four(a, TOKENS), hc_eps)
    b0, b1, b2, b3 = _shares(_four(b, TOKENS), hc_eps)
    c0, c1, c2, c3 = _shares(_four(c, TOKENS), hc_eps)
    d0, d1, d2, d3 = _shares(_four(d, TOKENS), hc_eps)
    for i in range(ITERATIONS):
        if i > 0:
            a0, a1, a2, a3 = _scaled(a0, a1, a2, a3, hc_eps)
            b0, b1, b2, b3 = _scaled(b0, b1, b2, b3, hc_eps)
            c0, c1, c2, c3 = _scaled(c0, c1, c2, c3, hc_eps)
            d0, d1, d2, d3 = _scaled(d0, d1, d2, d3, hc_eps)
        a0, b0, c0, d0 = _scaled(a0, b0, c0, d0, hc_eps)
        a1, b1, c1, d1 = _scaled(a1, b1, c1, d1, hc_eps)
        a2, b2, c2, d2 = _scaled(a2, b2, c2, d2, hc_eps)
        a3, b3, c3, d3 = _scaled(a3, b3, c3, d3, hc_eps)
    comb_ptr += token * 16
    _put(comb_ptr, here, a0, a1, a2, a3)
    _put(comb_ptr + 4, here, b0, b1, b2, b3)
    _put(comb_ptr + 8, here, c0, c1, c2, c3)
    _put(comb_ptr + 12, here, d0, d1, d2, d3)
    if BESIDE:
        gdc_wait()
