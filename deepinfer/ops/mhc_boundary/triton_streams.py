"""New streams, the sub-layer's input and partial products of a boundary, for Hopper.

Few tokens take one launch: some programs hold a token each and make its input, others make a slice
of the new streams for some tokens and multiply it. Many take two, which store and read the streams
once. A token's bits are the same either way. Knows nothing of coefficients.
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
def _read(x_ptr, y_ptr, column, inside, HIDDEN: tl.constexpr, PENDING: tl.constexpr):
    """Some columns of the four streams and of the pending output, bf16 as they are."""
    x0 = tl.load(x_ptr + column, inside, 0.0)
    x1 = tl.load(x_ptr + HIDDEN + column, inside, 0.0)
    x2 = tl.load(x_ptr + 2 * HIDDEN + column, inside, 0.0)
    x3 = tl.load(x_ptr + 3 * HIDDEN + column, inside, 0.0)
    y = tl.load(y_ptr + column, inside, 0.0) if PENDING else x0
    return x0, x1, x2, x3, y


@triton.jit
def _mixed(x, post, c0, c1, c2, c3, k: tl.constexpr):
    """New stream k, rounded."""
    return mixed(x[0], x[1], x[2], x[3], x[4], c0[k], c1[k], c2[k], c3[k], post[k])


@triton.jit
def _store_input(
    plain, norm, norm_ptr, hidden_ptr, codes_ptr, bytes_ptr, first: tl.constexpr,
    HIDDEN: tl.constexpr, QUANTISE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Normalised columns `first`... of a token and their FP8 pair."""
    column = first + tl.arange(0, COLUMNS)
    inside = column < HIDDEN
    weight = tl.load(norm_ptr + column, inside, 0.0)
    hidden = (weight * (plain.to(tl.float32) * norm)).to(tl.bfloat16)
    tl.store(hidden_ptr + column, hidden, inside)
    if QUANTISE:
        codes, exponent = fp8_groups(tl.reshape(hidden.to(tl.float32), (COLUMNS // 32, 32)))
        tl.store(codes_ptr + column, tl.reshape(codes, (COLUMNS,)), inside)
        group = first // 32 + tl.arange(0, COLUMNS // 32)
        tl.store(bytes_ptr + group, exponent.to(tl.uint8), group < HIDDEN // 32)


@triton.jit
def _token(
    token, x_ptr, y_ptr, post_ptr, comb_ptr, pre_ptr, norm_ptr,
    new_ptr, hidden_ptr, codes_ptr, bytes_ptr, square_ptr, eps,
    HIDDEN: tl.constexpr, PENDING: tl.constexpr, QUANTISE: tl.constexpr, COLUMNS: tl.constexpr,
    STORE: tl.constexpr,
):  # fmt: skip
    """One token: collapse, norm, FP8, the sum of squares of the new streams; with STORE these."""
    x_ptr += token * 4 * HIDDEN
    new_ptr += token * 4 * HIDDEN
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
        here = _read(x_ptr, y_ptr + token * HIDDEN, column, column < HIDDEN, HIDDEN, PENDING)
        reads = reads + (here,)  # Triton has no list
    collapsed = ()
    for part in tl.static_range(0, (HIDDEN + COLUMNS - 1) // COLUMNS):
        column = part * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < HIDDEN
        new = reads[part]
        if PENDING:
            n0 = _mixed(new, post, c0, c1, c2, c3, 0)
            n1 = _mixed(new, post, c0, c1, c2, c3, 1)
            n2 = _mixed(new, post, c0, c1, c2, c3, 2)
            n3 = _mixed(new, post, c0, c1, c2, c3, 3)
            if STORE:
                tl.store(new_ptr + column, n0, inside)
                tl.store(new_ptr + HIDDEN + column, n1, inside)
                tl.store(new_ptr + 2 * HIDDEN + column, n2, inside)
                tl.store(new_ptr + 3 * HIDDEN + column, n3, inside)
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
    tl.store(square_ptr + token, tl.sum(squares, 0))
    norm = tl.rsqrt(tl.sum(plain_squares, 0) / HIDDEN + eps)
    for part in tl.static_range(0, (HIDDEN + COLUMNS - 1) // COLUMNS):
        _store_input(
            collapsed[part], norm, norm_ptr, hidden_ptr, codes_ptr, bytes_ptr, part * COLUMNS,
            HIDDEN, QUANTISE, COLUMNS,
        )  # fmt: skip


@triton.jit
def advance(
    x_ptr, y_ptr, post_ptr, comb_ptr, pre_ptr, norm_ptr,
    new_ptr, hidden_ptr, codes_ptr, bytes_ptr, square_ptr, eps,
    HIDDEN: tl.constexpr, PENDING: tl.constexpr, QUANTISE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A token a program: all of `_token`."""
    gdc_wait()
    _token(
        tl.program_id(0).to(tl.int64), x_ptr, y_ptr, post_ptr, comb_ptr, pre_ptr, norm_ptr,
        new_ptr, hidden_ptr, codes_ptr, bytes_ptr, square_ptr, eps,
        HIDDEN, PENDING, QUANTISE, COLUMNS, True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["tokens"])
def project(
    new_ptr, fn_ptr, part_ptr, tokens,
    K: tl.constexpr, TOKENS: tl.constexpr, SLICE: tl.constexpr, GROUP: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    """Products [group, token, 64] of new streams with both terms of the projection: of GROUP slices
    of K, each summed by itself, first to last."""
    gdc_wait()
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    row = tl.arange(0, 64)
    here, used = (token < tokens)[:, None], (row % 32 < 24)[None, :]
    start = tl.program_id(1) * SLICE * GROUP
    total = tl.zeros([TOKENS, 64], tl.float32)
    part = tl.zeros([TOKENS, 64], tl.float32)
    steps: tl.constexpr = SLICE // STEP
    for i in range(GROUP * steps):
        column = start + i * STEP + tl.arange(0, STEP)
        new = tl.load(new_ptr + token[:, None].to(tl.int64) * K + column[None, :], here, 0.0)
        fn = tl.load(fn_ptr + row[None, :] * K + column[:, None], used, 0.0)
        part = tl.dot(new, fn, part)
        last = tl.where(i % steps == steps - 1, 1.0, 0.0)
        total = tl.where(last > 0, total + part, total)
        part *= 1 - last  # a choice between it and zeros does not compile for sm100
    gdc_launch_dependents()
    out = (tl.program_id(1) * tokens + token)[:, None].to(tl.int64) * 64 + row[None, :]
    tl.store(part_ptr + out, total, here & used)


@triton.jit
def _slice(
    number, x_ptr, y_ptr, post_ptr, comb_ptr, fn_ptr, new_ptr, part_ptr, tokens,
    HIDDEN: tl.constexpr, PENDING: tl.constexpr, SLICE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """A slice of the new streams of TOKENS tokens, and its product [token, 64]."""
    slices: tl.constexpr = 4 * HIDDEN // SLICE
    slice = number % slices
    row, column = tl.arange(0, 64), tl.arange(0, SLICE)
    used = (row % 32 < 24)[:, None]
    # The projection does not depend on the kernel before.
    fn = tl.load(fn_ptr + row[:, None] * (4 * HIDDEN) + slice * SLICE + column[None, :], used, 0.0)
    gdc_wait()
    token = number // slices * TOKENS + tl.arange(0, TOKENS)
    here = (token < tokens)[:, None]
    stream = slice // (slices // 4)
    column += slice % (slices // 4) * SLICE
    at = (token.to(tl.int64) * (4 * HIDDEN))[:, None] + column[None, :]
    if PENDING:
        y_at = (token.to(tl.int64) * HIDDEN)[:, None] + column[None, :]
        comb_ptr += token[:, None] * 16 + stream
        new = mixed(
            tl.load(x_ptr + at, here, 0.0),
            tl.load(x_ptr + HIDDEN + at, here, 0.0),
            tl.load(x_ptr + 2 * HIDDEN + at, here, 0.0),
            tl.load(x_ptr + 3 * HIDDEN + at, here, 0.0),
            tl.load(y_ptr + y_at, here, 0.0),
            tl.load(comb_ptr, here, 0.0),
            tl.load(comb_ptr + 4, here, 0.0),
            tl.load(comb_ptr + 8, here, 0.0),
            tl.load(comb_ptr + 12, here, 0.0),
            tl.load(post_ptr + token[:, None] * 4 + stream, here, 0.0),
        )
        tl.store(new_ptr + stream * HIDDEN + at, new, here)
    else:
        new = tl.load(x_ptr + stream * HIDDEN + at, here, 0.0)
    total = tl.dot(fn, new.T)
    out = (slice * tokens + token).to(tl.int64)[None, :] * 64 + row[:, None]
    tl.store(part_ptr + out, total, used & (token < tokens)[None, :])


@triton.jit(do_not_specialize=["tokens", "eps"])
def advance_and_project(
    x_ptr, y_ptr, post_ptr, comb_ptr, pre_ptr, norm_ptr, fn_ptr,
    new_ptr, hidden_ptr, codes_ptr, bytes_ptr, square_ptr, part_ptr, tokens, eps,
    HIDDEN: tl.constexpr, PENDING: tl.constexpr, QUANTISE: tl.constexpr, COLUMNS: tl.constexpr,
    SLICE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Both at once: a program for each token, then those of all slices of TOKENS tokens."""
    number = tl.program_id(0)
    if number < tokens:
        gdc_wait()
        _token(
            number.to(tl.int64), x_ptr, y_ptr, post_ptr, comb_ptr, pre_ptr, norm_ptr,
            new_ptr, hidden_ptr, codes_ptr, bytes_ptr, square_ptr, eps,
            HIDDEN, PENDING, QUANTISE, COLUMNS, False,
        )  # fmt: skip
    else:
        gdc_launch_dependents()
        _slice(
            number - tokens, x_ptr, y_ptr, post_ptr, comb_ptr, fn_ptr, new_ptr, part_ptr, tokens,
            HIDDEN, PENDING, SLICE, TOKENS,
        )  # fmt: skip
