"""Low-rank query and window key on Hopper: one FP8 product of both, one launch for the rest.

The second launch adds the segments of the product. Bits are those of the two linears and the norm,
each launched alone. Knows no rotation.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.formats import Fp8Weight, Quantised
from deepinfer.ops.linear_fp8 import triton as linear
from deepinfer.ops.low_rank.reference import LowRank, LowRankWeights
from deepinfer.ops.norm_quantise.reference import Normed
from deepinfer.ops.triton_rows import norm_warps, store_fp8, summed


class PackedLowRank(NamedTuple):
    """Both matrices as one of the linear kernel, `wq_a` above `wkv`; q_norm [rank]."""

    both: linear.PackedLinear
    q_norm: Tensor


def pack(weights: LowRankWeights) -> PackedLowRank:
    """Stack the matrices and cut them into tiles; no code changes.

    Raises:
        ValueError: a weight is not FP8, or a size does not fit the tiles.
    """
    first, second, q_norm = weights
    if not isinstance(first, Fp8Weight) or not isinstance(second, Fp8Weight):
        raise ValueError("low_rank: the triton kernels take FP8 weights only; use reference")
    stacked = (torch.cat(parts) for parts in zip(first, second, strict=True))
    return PackedLowRank(linear.pack(Fp8Weight(*stacked)), q_norm)


@triton.jit(do_not_specialize=["tokens", "eps"])
def _finish(
    x_ptr, norm_ptr, hidden_ptr, codes_ptr, bytes_ptr, kv_ptr, tokens, eps,
    RANK: tl.constexpr, KEY: tl.constexpr, SEGMENTS: tl.constexpr,
    SIZE: tl.constexpr, KEY_SIZE: tl.constexpr, QUANTISE: tl.constexpr,
):  # fmt: skip
    """One token's query summed, normalised and quantised; in another program its key summed."""
    gdc_wait()
    gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    step = tokens.to(tl.int64) * (RANK + KEY)
    x_ptr += row * (RANK + KEY)
    if tl.program_id(1) == 0:
        column = tl.arange(0, SIZE)
        inside = column < RANK
        x = summed(x_ptr + column, step, inside, SEGMENTS)
        weight = tl.load(norm_ptr + column, inside, 0.0).to(tl.float32)
        hidden = (weight * (x * tl.rsqrt(tl.sum(x * x, 0) / RANK + eps))).to(tl.bfloat16)
        tl.store(hidden_ptr + row * RANK + column, hidden, inside)
        if QUANTISE:
            wide = hidden.to(tl.float32)
            bytes_ptr += row * (RANK // 32)
            store_fp8(wide, codes_ptr + row * RANK, bytes_ptr, 0, RANK, SIZE)
    else:
        place = tl.arange(0, KEY_SIZE)
        here = place < KEY
        key = summed(x_ptr + RANK + place, step, here, SEGMENTS)
        tl.store(kv_ptr + row * KEY + place, key.to(tl.bfloat16), here)


def low_rank(
    x: Tensor | Quantised, weights: PackedLowRank, *, eps: float, quantise: bool
) -> LowRank:
    """As the reference, for packed weights and an FP8 pair.

    Raises:
        ValueError: `x` is plain.
    """
    if not isinstance(x, Quantised):
        raise ValueError("low_rank: the triton kernels take an FP8 pair; use reference")
    return finish(linear.unsummed(x, weights.both), weights.q_norm, eps, quantise=quantise)


def finish(product: Tensor, q_norm: Tensor, eps: float, *, quantise: bool) -> LowRank:
    """Query and key of the stacked product [tokens, rank + head_dim], or of its segments."""
    (tokens, out), rank, device = product.shape[-2:], q_norm.shape[0], product.device
    hidden = torch.empty((tokens, rank), dtype=torch.bfloat16, device=device)
    codes = torch.empty((tokens, rank), dtype=torch.uint8, device=device)
    scale = torch.empty((tokens, rank // 32), dtype=torch.uint8, device=device)
    kv = torch.empty((tokens, out - rank), dtype=torch.bfloat16, device=device)
    if tokens:
        _finish[(tokens, 2)](
            product, q_norm, hidden, codes, scale, kv, tokens, eps,
            rank, out - rank, product.shape[0] if product.dim() == 3 else 1,
            triton.next_power_of_2(rank), triton.next_power_of_2(out - rank), quantise,
            num_warps=norm_warps(rank), enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
    return LowRank(Normed(hidden, Quantised(codes, scale) if quantise else None), kv)


def refuses(
    *, arch: str, rank: int, head_dim: int, hidden: int, quantised: bool, **_facts: object
) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    if head_dim % 32 or rank % 32:
        return f"{rank} + {head_dim} rows are no multiples of 32"
    shapes = ((rank + head_dim, hidden),)
    return linear.refuses(arch=arch, quantised=quantised, linear_shapes=shapes)
