"""The step between two sub-layers in three launches that read and write the streams once.

The first makes the new streams and the sub-layer's input, one program a token that keeps the whole
token in registers. The others make the coefficients, which nothing needs before the sub-layer is
done: a product of the new streams with the projection, in fixed slices of K, and the splitting of
its sums. Knows nothing of attention or experts. Meaning: reference.py.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.formats import Quantised
from deepinfer.ops.mhc_boundary.reference import Boundary, HyperWeights
from deepinfer.ops.mhc_update.reference import Pending

_STREAMS = 4
_COEFFICIENTS = 24  # (2 + m) m
_ROWS = 32  # the coefficients, padded, of one of the two terms of the projection


class Plan(NamedTuple):
    """How the three kernels cut their work.

    columns, warps: of a part of a token in `_advance`; registers: bound for a thread of it, so that
    a fourth program fits on a multiprocessor. slice: columns that a program of `_project` sums; the
    slices fix the order of every sum, so they never depend on the tokens. step, stages,
    project_warps: of its loop. project_tokens, split_tokens: tokens a program. split_warps: of
    `_split`; they too fix an order.
    """

    columns: int = 1024
    warps: int = 8
    registers: int | None = 64
    slice: int = 1024
    step: int = 64
    stages: int = 4
    project_warps: int = 4
    project_tokens: int = 64
    split_tokens: int = 2
    split_warps: int = 1


PLAN = Plan()  # measured on one H200 (docs/kernels.md)


class PackedHyper(NamedTuple):
    """Weights of one boundary; `fn` as two bf16 terms of 32 rows each, 24 of them used.

    fn [64, 4 * hidden] bf16, together 16 bits of mantissa; base [24], scale [3], norm [hidden],
    all three fp32.
    """

    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor


def pack(weights: HyperWeights) -> PackedHyper:
    """Split the fp32 projection into a high and a low bf16 term, for bf16 products summed in fp32.

    Raises:
        ValueError: other than 4 streams.
    """
    if weights.fn.shape[0] != _COEFFICIENTS:
        raise ValueError(
            f"mhc_boundary: {weights.fn.shape[0]} coefficients; the kernels take 24 (4 streams)"
        )
    full = torch.nn.functional.pad(weights.fn.float(), (0, 0, 0, _ROWS - _COEFFICIENTS))
    high = full.to(torch.bfloat16)
    return PackedHyper(
        torch.cat((high, (full - high.float()).to(torch.bfloat16))),
        weights.base.float().contiguous(),
        weights.scale.float().contiguous(),
        weights.norm.float().contiguous(),
    )


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
def _mixed(read, post, c0, c1, c2, c3, k: tl.constexpr):
    """New stream k, rounded."""
    x0, x1, x2, x3 = read[0].to(tl.float32), read[1].to(tl.float32), read[2], read[3]
    mixed = c0[k] * x0 + c1[k] * x1 + c2[k] * x2.to(tl.float32) + c3[k] * x3.to(tl.float32)
    return (post[k] * read[4].to(tl.float32) + mixed).to(tl.bfloat16)


@triton.jit
def _advance(
    x_ptr, y_ptr, post_ptr, comb_ptr, pre_ptr, norm_ptr,
    new_ptr, hidden_ptr, codes_ptr, bytes_ptr, square_ptr, eps,
    HIDDEN: tl.constexpr, PENDING: tl.constexpr, QUANTISE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One token: new streams, collapse, norm, FP8; and the sum of squares of the new streams."""
    gdc_wait()
    token = tl.program_id(0).to(tl.int64)
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
            tl.store(new_ptr + column, n0, inside)
            tl.store(new_ptr + HIDDEN + column, n1, inside)
            tl.store(new_ptr + 2 * HIDDEN + column, n2, inside)
            tl.store(new_ptr + 3 * HIDDEN + column, n3, inside)
            new = (n0, n1, n2, n3)
        x0, x1 = new[0].to(tl.float32), new[1].to(tl.float32)
        x2, x3 = new[2].to(tl.float32), new[3].to(tl.float32)
        squares += x0 * x0 + x1 * x1 + x2 * x2 + x3 * x3
        plain = (p0 * x0 + p1 * x1 + p2 * x2 + p3 * x3).to(tl.bfloat16)
        collapsed = collapsed + (plain,)
        wide = plain.to(tl.float32)
        plain_squares += wide * wide
    gdc_launch_dependents()
    tl.store(square_ptr + token, tl.sum(squares, 0))
    norm = tl.rsqrt(tl.sum(plain_squares, 0) / HIDDEN + eps)
    for part in tl.static_range(0, (HIDDEN + COLUMNS - 1) // COLUMNS):
        column = part * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < HIDDEN
        weight = tl.load(norm_ptr + column, inside, 0.0)
        hidden = (weight * (collapsed[part].to(tl.float32) * norm)).to(tl.bfloat16)
        tl.store(hidden_ptr + column, hidden, inside)
        if QUANTISE:
            groups = tl.reshape(hidden.to(tl.float32), (COLUMNS // 32, 32))
            size = tl.maximum(tl.max(tl.abs(groups), 1), 1e-4)
            bits = tl.div_rn(size, 448.0).to(tl.int32, bitcast=True)
            exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
            inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
            codes = (groups * inverse[:, None]).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
            tl.store(codes_ptr + column, tl.reshape(codes, (COLUMNS,)), inside)
            group = part * (COLUMNS // 32) + tl.arange(0, COLUMNS // 32)
            tl.store(bytes_ptr + group, exponent.to(tl.uint8), group < HIDDEN // 32)


@triton.jit(do_not_specialize=["tokens"])
def _project(
    new_ptr, fn_ptr, part_ptr, tokens,
    K: tl.constexpr, TOKENS: tl.constexpr, SLICE: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Partial products [slice, token, 64] of the new streams with both terms of the projection."""
    gdc_wait()
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    row = tl.arange(0, 64)
    here = (token < tokens)[:, None]
    start = tl.program_id(1) * SLICE
    total = tl.zeros([TOKENS, 64], tl.float32)
    for first in range(start, start + SLICE, STEP):
        column = first + tl.arange(0, STEP)
        new = tl.load(new_ptr + token[:, None].to(tl.int64) * K + column[None, :], here, 0.0)
        fn = tl.load(fn_ptr + row[None, :] * K + column[:, None])
        total = tl.dot(new, fn, total)
    gdc_launch_dependents()
    out = (tl.program_id(1) * tokens + token)[:, None].to(tl.int64) * 64 + row[None, :]
    tl.store(part_ptr + out, total, here)


@triton.jit
def _summed(part_ptr, token, tokens, first: tl.constexpr, COUNT: tl.constexpr, PARTS: tl.constexpr):
    """u[token, first : first + COUNT]: all slices of both terms, in a fixed tree order."""
    part = tl.arange(0, triton.next_power_of_2(PARTS))
    number = first + tl.arange(0, COUNT)
    row = (part[None, :] * tokens + token[:, None]).to(tl.int64) * 64
    here = ((part < PARTS)[None, :] & (token < tokens)[:, None])[:, :, None]
    at = part_ptr + row[:, :, None] + number[None, None, :]
    return tl.sum(tl.load(at, here, 0.0) + tl.load(at + 32, here, 0.0), 1)


@triton.jit(do_not_specialize=["tokens"])
def _split(
    part_ptr, square_ptr, base_ptr, scale_ptr, pre_ptr, post_ptr, comb_ptr, tokens, eps, hc_eps,
    K: tl.constexpr, PARTS: tl.constexpr, ITERATIONS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """pre, post and comb of TOKENS tokens."""
    gdc_wait()
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    here = token < tokens
    four = tl.arange(0, 4)
    norm = tl.rsqrt(tl.load(square_ptr + token, here, 1.0) / K + eps)[:, None]
    flat = token[:, None] * 4 + four[None, :]
    pre = _summed(part_ptr, token, tokens, 0, 4, PARTS) * norm * tl.load(scale_ptr)
    pre += tl.load(base_ptr + four)[None, :]
    tl.store(pre_ptr + flat, 1 / (1 + tl.exp(-pre)) + hc_eps, here[:, None])
    post = _summed(part_ptr, token, tokens, 4, 4, PARTS) * norm * tl.load(scale_ptr + 1)
    post += tl.load(base_ptr + 4 + four)[None, :]
    tl.store(post_ptr + flat, 2 / (1 + tl.exp(-post)), here[:, None])
    sixteen = tl.arange(0, 16)
    comb = _summed(part_ptr, token, tokens, 8, 16, PARTS) * norm * tl.load(scale_ptr + 2)
    comb += tl.load(base_ptr + 8 + sixteen)[None, :]
    comb = tl.reshape(comb, (TOKENS, 4, 4))
    comb = tl.exp(comb - tl.max(comb, 2)[:, :, None])
    comb = comb * (1 / tl.sum(comb, 2))[:, :, None] + hc_eps
    comb = comb * (1 / (tl.sum(comb, 1) + hc_eps))[:, None, :]
    for _ in range(ITERATIONS - 1):
        comb = comb * (1 / (tl.sum(comb, 2) + hc_eps))[:, :, None]
        comb = comb * (1 / (tl.sum(comb, 1) + hc_eps))[:, None, :]
    at = token[:, None] * 16 + sixteen[None, :]
    tl.store(comb_ptr + at, tl.reshape(comb, (TOKENS, 16)), here[:, None])


def mhc_boundary(
    streams: Tensor,
    pending: Pending | None,
    pre: Tensor,
    weights: PackedHyper,
    *,
    eps: float,
    hc_eps: float,
    iterations: int,
    quantise: bool,
) -> Boundary:
    """As the reference, with packed weights.

    Args:
        streams: [tokens, 4, hidden] bf16, contiguous, as are the tensors of `pending` and `pre`.
        pending: output (bf16 or fp32) of the sub-layer before, or None.
        pre: [tokens, 4] fp32.
        weights: what `pack` returned.
        eps: config key `rms_norm_eps`.
        hc_eps: config key `hc_eps`.
        iterations: config key `hc_sinkhorn_iters`.
        quantise: also return the FP8 pair of the normalised input.

    Raises:
        ValueError: the streams are not bf16.
    """
    if streams.dtype != torch.bfloat16:
        raise ValueError(f"mhc_boundary: streams are {streams.dtype}; use reference")
    return launch(streams, pending, pre, weights, eps, hc_eps, iterations, quantise, PLAN)


def launch(
    streams: Tensor,
    pending: Pending | None,
    pre: Tensor,
    weights: PackedHyper,
    eps: float,
    hc_eps: float,
    iterations: int,
    quantise: bool,
    plan: Plan,
) -> Boundary:
    """The three kernels with a given plan; the rest as in `mhc_boundary`."""
    tokens, _, hidden = streams.shape
    device, flat = streams.device, _STREAMS * hidden
    new = streams if pending is None else torch.empty_like(streams)
    out = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=device)
    codes = torch.empty((tokens, hidden), dtype=torch.uint8, device=device)
    scale = torch.empty((tokens, hidden // 32), dtype=torch.uint8, device=device)
    square = torch.empty(tokens, dtype=torch.float32, device=device)
    parts = torch.empty((flat // plan.slice, tokens, 2 * _ROWS), dtype=torch.float32, device=device)
    next_pre, post = torch.empty((2, tokens, _STREAMS), dtype=torch.float32, device=device)
    comb = torch.empty((tokens, _STREAMS, _STREAMS), dtype=torch.float32, device=device)
    y, old_post, old_comb = (streams, pre, pre) if pending is None else pending
    if tokens:
        # Without fusing multiply and add, so that the streams are the reference's bits.
        _advance[(tokens,)](
            streams, y, old_post, old_comb, pre, weights.norm, new, out, codes, scale, square, eps,
            hidden, pending is not None, quantise, plan.columns,
            num_warps=plan.warps, maxnreg=plan.registers, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
        _project[(triton.cdiv(tokens, plan.project_tokens), flat // plan.slice)](
            new, weights.fn, parts, tokens, flat, plan.project_tokens, plan.slice, plan.step,
            num_warps=plan.project_warps, num_stages=plan.stages, launch_pdl=True,
        )  # fmt: skip
        _split[(triton.cdiv(tokens, plan.split_tokens),)](
            parts, square, weights.base, weights.scale, next_pre, post, comb, tokens, eps, hc_eps,
            flat, flat // plan.slice, iterations, plan.split_tokens,
            num_warps=plan.split_warps, launch_pdl=True,
        )  # fmt: skip
    pair = Quantised(codes, scale) if quantise else None
    return Boundary(new, next_pre, post, comb, out, pair)


def refuses(
    *, arch: str, hidden: int, streams: int, quantised: bool, **_facts: object
) -> str | None:
    """None if these kernels serve, else why not; facts as `Op.bind` passes them."""
    if arch != "sm90":
        return f"written for sm90, not {arch}"
    if not quantised:
        return "takes bf16 streams only"
    if streams != _STREAMS or _STREAMS * hidden % PLAN.slice:
        return f"{streams} streams of {hidden}; serves 4 streams, hidden a multiple of 256"
    return None
