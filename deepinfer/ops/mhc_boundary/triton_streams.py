"""New streams, the sub-layer's input and partial products of a boundary, for Hopper.

Few tokens take one launch: some programs hold a token each and make its input, others make a slice
of the new streams for some tokens and multiply it. Of many tokens triton_tiles.py makes the
streams, and the input without its norm, which is made here. A token's bits are the same either
way. Knows nothing of coefficients.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.mhc_update.triton import mixed
from deepinfer.ops.triton_rows import fp8_groups


@triton.jit
def _four(ptr):
    return tl.load(ptr), tl.load(ptr + 1), tl.load(ptr + 2), tl.load(ptr + 3)


@triton.jit
def _sum(x, SIZE: tl.constexpr):
    """Sum of SIZE numbers, neighbours first: an order that no layout changes."""
    if SIZE == 2:
        return tl.sum(x, 0)
    else:  # noqa: RET505 - Triton compiles what follows a return in a constant branch
        return _sum(tl.sum(tl.reshape(x, (SIZE // 2, 2)), 1), SIZE // 2)


@triton.jit
def _read(x_ptr, y_ptr, column, HIDDEN: tl.constexpr, PENDING: tl.constexpr):
    """Some columns of the four streams and of what is pending, bf16 as they are."""
    x0 = tl.load(x_ptr + column)
    x1 = tl.load(x_ptr + HIDDEN + column)
    x2 = tl.load(x_ptr + 2 * HIDDEN + column)
    x3 = tl.load(x_ptr + 3 * HIDDEN + column)
    y = tl.load(y_ptr + column) if PENDING else x0
    return x0, x1, x2, x3, y


@triton.jit
def _mixed(x, post, c0, c1, c2, c3, k: tl.constexpr):
    """New stream k, rounded."""
    return mixed(x[0], x[1], x[2], x[3], x[4], c0[k], c1[k], c2[k], c3[k], post[k])


@triton.jit
def _store_input(
    plain, norm, norm_ptr, hidden_ptr, codes_ptr, bytes_ptr, first: tl.constexpr,
    QUANTISE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Normalised columns `first`... of a token and their FP8 pair."""
    column = first + tl.arange(0, COLUMNS)
    weight = tl.load(norm_ptr + column)
    hidden = (weight * (plain.to(tl.float32) * norm)).to(tl.bfloat16)
    tl.store(hidden_ptr + column, hidden)
    if QUANTISE:
        codes, exponent = fp8_groups(tl.reshape(hidden.to(tl.float32), (COLUMNS // 32, 32)))
        tl.store(codes_ptr + column, tl.reshape(codes, (COLUMNS,)))
        group = first // 32 + tl.arange(0, COLUMNS // 32)
        tl.store(bytes_ptr + group, exponent.to(tl.uint8))


@triton.jit
def _token(
    token, x_ptr, y_ptr, post_ptr, comb_ptr, pre_ptr, norm_ptr,
    hidden_ptr, codes_ptr, bytes_ptr, square_ptr, eps,
    HIDDEN: tl.constexpr, PENDING: tl.constexpr, QUANTISE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One token: collapse, norm, FP8 and the sum of squares of its new streams."""
    x_ptr += token * 4 * HIDDEN
    hidden_ptr += token * HIDDEN
    codes_ptr += token * HIDDEN
    bytes_ptr += token * (HIDDEN // 32)
    squares = tl.zeros([COLUMNS], tl.float32)
    plain_squares = tl.zeros([COLUMNS], tl.float32)
    p0, p1, p2, p3 = _four(pre_ptr + token * 4)
    if PENDING:
        post = _four(post_ptr + token * 4)
        c0, c1 = _four(comb_ptr + token * 16), _four(comb_ptr + token * 16 + 4)
        c2, c3 = _four(comb_ptr + token * 16 + 8), _four(comb_ptr + token * 16 + 12)
    # All reads come first: none of them could pass a store that might write where it reads.
    reads = ()
    for first in tl.static_range(0, HIDDEN, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        here = _read(x_ptr, y_ptr + token * HIDDEN, column, HIDDEN, PENDING)
        reads = reads + (here,)  # Triton has no list
    collapsed = ()
    for part in tl.static_range(0, HIDDEN // COLUMNS):
        new = reads[part]
        if PENDING:
            n0 = _mixed(new, post, c0, c1, c2, c3, 0)
            n1 = _mixed(new, post, c0, c1, c2, c3, 1)
            n2 = _mixed(new, post, c0, c1, c2, c3, 2)
            n3 = _mixed(new, post, c0, c1, c2, c3, 3)
            new = (n0, n1, n2, n3)
        x0, x1 = new[0].to(tl.float32), new[1].to(tl.float32)
        x2, x3 = new[2].to(tl.float32), new[3].to(tl.float32)
        squares = tl.fma(x1, x1, tl.fma(x0, x0, squares))
        squares = tl.fma(x3, x3, tl.fma(x2, x2, squares))
        # Not fused, as the streams are not: the collapse has the reference's bits, too.
        plain = (p0 * x0 + p1 * x1 + p2 * x2 + p3 * x3).to(tl.bfloat16)
        collapsed = collapsed + (plain,)
        wide = plain.to(tl.float32)
        plain_squares = tl.fma(wide, wide, plain_squares)
    gdc_launch_dependents()
    tl.store(square_ptr + token, _sum(squares, COLUMNS))
    norm = tl.rsqrt(_sum(plain_squares, COLUMNS) / HIDDEN + eps)
    for part in tl.static_range(0, HIDDEN // COLUMNS):
        _store_input(
            collapsed[part], norm, norm_ptr, hidden_ptr, codes_ptr, bytes_ptr, part * COLUMNS,
            QUANTISE, COLUMNS,
        )  # fmt: skip


@triton.jit
def _slice(
    number, x_ptr, y_ptr, post_ptr, comb_ptr, fn_ptr, new_ptr, part_ptr, tokens,
    HIDDEN: tl.constexpr, PENDING: tl.constexpr, GROUPS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """64 columns of each new stream of TOKENS tokens, and their product [token, 64]."""
    chunks: tl.constexpr = HIDDEN // 64 // GROUPS
    slice = number % (HIDDEN // 64)
    row = tl.arange(0, 64)
    column = slice * 64 + tl.arange(0, 64)
    used = (row % 32 < 24)[:, None]
    # The projection does not depend on the kernel before.
    four = tl.arange(0, 256)
    four = four // 64 * HIDDEN + slice * 64 + four % 64
    fn = tl.load(fn_ptr + row[:, None] * (4 * HIDDEN) + four[None, :], used, 0.0)
    gdc_wait()
    token = number // (HIDDEN // 64) * TOKENS + tl.arange(0, TOKENS)
    inside = token < tokens
    here = inside[:, None]
    at = (token.to(tl.int64) * (4 * HIDDEN))[:, None] + column[None, :]
    n0 = tl.load(x_ptr + at, here, 0.0)
    n1 = tl.load(x_ptr + HIDDEN + at, here, 0.0)
    n2 = tl.load(x_ptr + 2 * HIDDEN + at, here, 0.0)
    n3 = tl.load(x_ptr + 3 * HIDDEN + at, here, 0.0)
    if PENDING:
        y_at = (token.to(tl.int64) * HIDDEN)[:, None] + column[None, :]
        x = (n0, n1, n2, n3, tl.load(y_ptr + y_at, here, 0.0))
        post = _columns(post_ptr + token * 4, inside)
        c0 = _columns(comb_ptr + token * 16, inside)
        c1 = _columns(comb_ptr + token * 16 + 4, inside)
        c2 = _columns(comb_ptr + token * 16 + 8, inside)
        c3 = _columns(comb_ptr + token * 16 + 12, inside)
        n0 = _mixed(x, post, c0, c1, c2, c3, 0)
        n1 = _mixed(x, post, c0, c1, c2, c3, 1)
        n2 = _mixed(x, post, c0, c1, c2, c3, 2)
        n3 = _mixed(x, post, c0, c1, c2, c3, 3)
        tl.store(new_ptr + at, n0, here)
        tl.store(new_ptr + HIDDEN + at, n1, here)
        tl.store(new_ptr + 2 * HIDDEN + at, n2, here)
        tl.store(new_ptr + 3 * HIDDEN + at, n3, here)
    new = tl.permute(tl.join(tl.join(n0, n1), tl.join(n2, n3)), (0, 3, 2, 1))
    total = tl.dot(fn, tl.reshape(new, (TOKENS, 256)).T)
    part = slice % GROUPS * chunks + slice // GROUPS
    out = (part * tokens + token).to(tl.int64)[None, :] * 64 + row[:, None]
    tl.store(part_ptr + out, total, used & inside[None, :])


@triton.jit
def _columns(ptr, inside):
    """Four numbers of each token, as columns."""
    return (
        tl.load(ptr, inside, 0.0)[:, None],
        tl.load(ptr + 1, inside, 0.0)[:, None],
        tl.load(ptr + 2, inside, 0.0)[:, None],
        tl.load(ptr + 3, inside, 0.0)[:, None],
    )


@triton.jit(do_not_specialize=["tokens", "eps"])
def advance_and_project(
    x_ptr, y_ptr, post_ptr, comb_ptr, pre_ptr, norm_ptr, fn_ptr,
    new_ptr, hidden_ptr, codes_ptr, bytes_ptr, square_ptr, part_ptr, tokens, eps,
    HIDDEN: tl.constexpr, PENDING: tl.constexpr, QUANTISE: tl.constexpr, GROUPS: tl.constexpr,
    TOKENS: tl.constexpr,
):  # fmt: skip
    """A program for each token, then those of all slices of TOKENS tokens.

    Column c belongs to group c / 64 % GROUPS, whose parts follow each other.
    """
    number = tl.program_id(0)
    if number < tokens:
        gdc_wait()
        _token(
            number.to(tl.int64), x_ptr, y_ptr, post_ptr, comb_ptr, pre_ptr, norm_ptr,
            hidden_ptr, codes_ptr, bytes_ptr, square_ptr, eps,
            HIDDEN, PENDING, QUANTISE, 64 * GROUPS,
        )  # fmt: skip
    else:
        gdc_launch_dependents()
        _slice(
            number - tokens, x_ptr, y_ptr, post_ptr, comb_ptr, fn_ptr, new_ptr, part_ptr, tokens,
            HIDDEN, PENDING, GROUPS, TOKENS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["tokens", "eps"])
def norm_input(
    plain_square_ptr, norm_ptr, hidden_ptr, codes_ptr, bytes_ptr, tokens, eps,
    HIDDEN: tl.constexpr, QUANTISE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Norm, in place, and FP8 of a token's collapse from its groups' sums of squares."""
    gdc_wait()
    gdc_launch_dependents()
    columns: tl.constexpr = 64 * GROUPS
    token = tl.program_id(0).to(tl.int64)
    hidden_ptr += token * HIDDEN
    codes_ptr += token * HIDDEN
    bytes_ptr += token * (HIDDEN // 32)
    group = tl.arange(0, GROUPS)
    sums = tl.load(plain_square_ptr + group * tokens + token)
    plains = ()
    for first in tl.static_range(0, HIDDEN, columns):
        at = hidden_ptr + first + tl.arange(0, columns)
        plains = plains + (tl.load(at),)
    norm = tl.rsqrt(_sum(sums, GROUPS) / HIDDEN + eps)
    for part in tl.static_range(0, HIDDEN // columns):
        _store_input(
            plains[part], norm, norm_ptr, hidden_ptr, codes_ptr, bytes_ptr, part * columns,
            QUANTISE, columns,
        )  # fmt: skip
