"""The step between two sub-layers in two launches that read and write the streams once.

The first updates the streams, collapses them and leaves partial sums of every slice of channels;
the second adds these in one order, normalises, quantises and makes the coefficients. Knows nothing
of attention or experts. Meaning: reference.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepinfer.ops.formats import Quantised
from deepinfer.ops.mhc_boundary.reference import Boundary, HyperWeights
from deepinfer.ops.mhc_update.reference import Pending

_STREAMS = 4
_COEFFICIENTS = 24  # (2 + m) m
_PADDED = 32  # 24 coefficients, then the squares of the streams and of the collapse
_SLICE = 64  # channels a program of `_mix`; the slices fix the order of every sum
_CHUNK = 16  # channels it holds at a time
_MIX_TOKENS = 16
_SPLIT_TOKENS = 32  # tokens of one coefficient program of `_finish`


class PackedHyper(NamedTuple):
    """Weights of one boundary; `fn` as a sum of three bf16 terms, so that no bit of it is lost.

    fn [3, 32, 4 * hidden] bf16 (rows 24 and up are zero); base [24], scale [3], norm [hidden] fp32.
    """

    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor


def pack(weights: HyperWeights) -> PackedHyper:
    """Split the fp32 projection into bf16 terms, high to low; their sum is exact.

    Raises:
        ValueError: other than 4 streams.
    """
    if weights.fn.shape[0] != _COEFFICIENTS:
        raise ValueError(
            f"mhc_boundary: {weights.fn.shape[0]} coefficients; the kernels take 24 (4 streams)"
        )
    rest = torch.nn.functional.pad(weights.fn.float(), (0, 0, 0, _PADDED - _COEFFICIENTS))
    terms: list[Tensor] = []
    for _ in range(3):
        terms.append(rest.to(torch.bfloat16))
        rest = rest - terms[-1].float()
    return PackedHyper(
        torch.stack(terms),
        weights.base.float().contiguous(),
        weights.scale.float().contiguous(),
        weights.norm.float().contiguous(),
    )


@triton.jit(do_not_specialize=["tokens"])
def _mix(
    x_ptr, y_ptr, post_ptr, comb_ptr, pre_ptr, fn_ptr, new_ptr, plain_ptr, part_ptr, tokens,
    HIDDEN: tl.constexpr, PENDING: tl.constexpr, TOKENS: tl.constexpr, SLICE: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """New streams, collapse, and partial sums [slice, token, 32] of one slice of channels."""
    tile, part = tl.program_id(0), tl.program_id(1)
    token = tile * TOKENS + tl.arange(0, TOKENS)
    here = token < tokens
    mask = here[:, None]
    number = tl.arange(0, 32)
    sums = tl.zeros([TOKENS, 32], tl.float32)
    squares = tl.zeros([TOKENS], tl.float32)
    plain_squares = tl.zeros([TOKENS], tl.float32)
    for first in range(part * SLICE, (part + 1) * SLICE, CHUNK):
        column = first + tl.arange(0, CHUNK)
        at = token[:, None] * (4 * HIDDEN) + column[None, :]
        collapse = tl.zeros([TOKENS, CHUNK], tl.float32)
        if PENDING:
            y = tl.load(y_ptr + token[:, None] * HIDDEN + column[None, :], mask, 0.0)
            y = y.to(tl.float32)
            x0 = tl.load(x_ptr + at, mask, 0.0).to(tl.float32)
            x1 = tl.load(x_ptr + at + HIDDEN, mask, 0.0).to(tl.float32)
            x2 = tl.load(x_ptr + at + 2 * HIDDEN, mask, 0.0).to(tl.float32)
            x3 = tl.load(x_ptr + at + 3 * HIDDEN, mask, 0.0).to(tl.float32)
        for k in tl.static_range(4):
            if PENDING:
                c = comb_ptr + token * 16 + k
                mixed = tl.load(c, here, 0.0)[:, None] * x0
                mixed += tl.load(c + 4, here, 0.0)[:, None] * x1
                mixed += tl.load(c + 8, here, 0.0)[:, None] * x2
                mixed += tl.load(c + 12, here, 0.0)[:, None] * x3
                post = tl.load(post_ptr + token * 4 + k, here, 0.0)
                new = (post[:, None] * y + mixed).to(tl.bfloat16)
                tl.store(new_ptr + at + k * HIDDEN, new, mask)
            else:
                new = tl.load(x_ptr + at + k * HIDDEN, mask, 0.0)
            for term in tl.static_range(3):
                row = fn_ptr + (term * 32 + number)[None, :] * (4 * HIDDEN)
                weight = tl.load(row + (k * HIDDEN + column)[:, None])
                sums = tl.dot(new, weight, sums)
            wide = new.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            collapse += tl.load(pre_ptr + token * 4 + k, here, 0.0)[:, None] * wide
        plain = collapse.to(tl.bfloat16)
        tl.store(plain_ptr + token[:, None] * HIDDEN + column[None, :], plain, mask)
        wide = plain.to(tl.float32)
        plain_squares += tl.sum(wide * wide, 1)
    sums = tl.where(number[None, :] == 24, squares[:, None], sums)
    sums = tl.where(number[None, :] == 25, plain_squares[:, None], sums)
    out = part_ptr + (part * tokens + token)[:, None] * 32 + number[None, :]
    tl.store(out, sums, mask)


@triton.jit(do_not_specialize=["tokens", "splitters"])
def _finish(
    plain_ptr, part_ptr, base_ptr, scale_ptr, norm_ptr,
    pre_ptr, post_ptr, comb_ptr, codes_ptr, bytes_ptr, tokens, splitters, eps, hc_eps,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, PARTS: tl.constexpr, ITERATIONS: tl.constexpr,
    QUANTISE: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Programs below `splitters` make coefficients of TOKENS tokens, the others normalise one."""
    program = tl.program_id(0)
    if program < splitters:
        token = (program * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
        here = token < tokens
        four = tl.arange(0, 4)
        flat = token[:, None] * 4 + four[None, :]
        cell = four[None, :, None] * 4 + four[None, None, :]
        square = tl.zeros([TOKENS], tl.float32)
        pre = tl.zeros([TOKENS, 4], tl.float32)
        post = tl.zeros([TOKENS, 4], tl.float32)
        comb = tl.zeros([TOKENS, 4, 4], tl.float32)
        for part in range(PARTS):
            row = part_ptr + (part * tokens.to(tl.int64) + token) * 32
            pre += tl.load(row[:, None] + four[None, :], here[:, None], 0.0)
            post += tl.load(row[:, None] + 4 + four[None, :], here[:, None], 0.0)
            comb += tl.load(row[:, None, None] + 8 + cell, here[:, None, None], 0.0)
            square += tl.load(row + 24, here, 0.0)
        norm = tl.rsqrt(square / (4 * HIDDEN) + eps)
        pre = pre * norm[:, None] * tl.load(scale_ptr) + tl.load(base_ptr + four)[None, :]
        post = post * norm[:, None] * tl.load(scale_ptr + 1) + tl.load(base_ptr + 4 + four)[None, :]
        tl.store(pre_ptr + flat, 1 / (1 + tl.exp(-pre)) + hc_eps, here[:, None])
        tl.store(post_ptr + flat, 2 / (1 + tl.exp(-post)), here[:, None])
        comb = comb * norm[:, None, None] * tl.load(scale_ptr + 2) + tl.load(base_ptr + 8 + cell)
        comb = tl.exp(comb - tl.max(comb, 2)[:, :, None])
        comb = comb / tl.sum(comb, 2)[:, :, None] + hc_eps
        comb = comb / (tl.sum(comb, 1) + hc_eps)[:, None, :]
        for _ in range(ITERATIONS - 1):
            comb = comb / (tl.sum(comb, 2) + hc_eps)[:, :, None]
            comb = comb / (tl.sum(comb, 1) + hc_eps)[:, None, :]
        tl.store(comb_ptr + token[:, None, None] * 16 + cell, comb, here[:, None, None])
        return
    token = (program - splitters).to(tl.int64)
    part = tl.arange(0, triton.next_power_of_2(PARTS))
    at = part_ptr + (part * tokens.to(tl.int64) + token) * 32 + 25
    square = tl.sum(tl.load(at, part < PARTS, 0.0), 0)
    norm = tl.rsqrt(square / HIDDEN + eps)
    group = tl.arange(0, WIDTH // 32)
    column = group[:, None] * 32 + tl.arange(0, 32)[None, :]
    inside = column < HIDDEN
    plain = tl.load(plain_ptr + token * HIDDEN + column, inside, 0.0).to(tl.float32)
    weight = tl.load(norm_ptr + column, inside, 0.0)
    hidden = (weight * (plain * norm)).to(tl.bfloat16)
    tl.store(plain_ptr + token * HIDDEN + column, hidden, inside)
    if QUANTISE:
        wide = hidden.to(tl.float32)
        size = tl.maximum(tl.max(tl.abs(wide), 1), 1e-4)
        bits = tl.div_rn(size, 448.0).to(tl.int32, bitcast=True)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
        inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
        codes = (wide * inverse[:, None]).to(tl.float8e4nv).to(tl.uint8, bitcast=True)
        tl.store(codes_ptr + token * HIDDEN + column, codes, inside)
        scales = bytes_ptr + token * (HIDDEN // 32) + group
        tl.store(scales, exponent.to(tl.uint8), group < HIDDEN // 32)


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
    tokens, _, hidden = streams.shape
    device, parts = streams.device, hidden // _SLICE
    new = streams if pending is None else torch.empty_like(streams)
    plain = torch.empty((tokens, hidden), dtype=torch.bfloat16, device=device)
    sums = torch.empty((parts, tokens, _PADDED), dtype=torch.float32, device=device)
    next_pre, post = torch.empty((2, tokens, _STREAMS), dtype=torch.float32, device=device)
    comb = torch.empty((tokens, _STREAMS, _STREAMS), dtype=torch.float32, device=device)
    codes = torch.empty((tokens, hidden), dtype=torch.uint8, device=device)
    scale = torch.empty((tokens, hidden // 32), dtype=torch.uint8, device=device)
    y, old_post, old_comb = (streams, pre, pre) if pending is None else pending
    if tokens:
        # Without fusing multiply and add, so that the streams are the reference's bits.
        _mix[(triton.cdiv(tokens, _MIX_TOKENS), parts)](
            streams, y, old_post, old_comb, pre, weights.fn, new, plain, sums, tokens,
            hidden, pending is not None, _MIX_TOKENS, _SLICE, _CHUNK,
            num_warps=1, num_stages=1, enable_fp_fusion=False,
        )  # fmt: skip
        splitters = triton.cdiv(tokens, _SPLIT_TOKENS)
        _finish[(splitters + tokens,)](
            plain, sums, weights.base, weights.scale, weights.norm,
            next_pre, post, comb, codes, scale, tokens, splitters, eps, hc_eps,
            hidden, triton.next_power_of_2(hidden), parts, iterations, quantise, _SPLIT_TOKENS,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    pair = Quantised(codes, scale) if quantise else None
    return Boundary(new, next_pre, post, comb, plain, pair)


def refuses(
    *, arch: str, hidden: int, streams: int, quantised: bool, **_facts: object
) -> str | None:
    """None if these kernels serve, else why not; facts as `Op.bind` passes them."""
    if not arch.startswith("sm9"):
        return f"measured on sm90 only, not {arch}"
    if not quantised:
        return "takes bf16 streams only"
    if streams != _STREAMS or hidden % _SLICE:
        return f"{streams} streams of {hidden}; serves 4 streams, hidden a multiple of {_SLICE}"
    return None
