"""The two narrow projections on the CPU, weights decoded once. Bits equal the reference's."""

from __future__ import annotations

from torch import Tensor

from deepinfer.ops.formats import Quantised
from deepinfer.ops.linear_fp8 import cpu as linear
from deepinfer.ops.low_rank.reference import LowRank, LowRankWeights
from deepinfer.ops.norm_quantise.cpu import norm_quantise


def pack(weights: LowRankWeights) -> LowRankWeights:
    """Both matrices decoded."""
    return LowRankWeights(linear.pack(weights.wq_a), linear.pack(weights.wkv), weights.q_norm)


def low_rank(
    x: Tensor | Quantised, weights: LowRankWeights, *, eps: float, quantise: bool
) -> LowRank:
    """As the reference, for weights that `pack` decoded."""
    query = linear.linear_fp8(x, weights.wq_a)
    return LowRank(
        norm_quantise(query, weights.q_norm, eps=eps, quantise=quantise),
        linear.linear_fp8(x, weights.wkv),
    )
