"""Low-rank query and window key in plain Triton: one product of both, one launch for the rest.

Knows no rotation.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.formats import Fp8Weight, Quantised
from deepinfer.ops.linear_fp8 import portable as linear
from deepinfer.ops.low_rank.reference import LowRank, LowRankWeights
from deepinfer.ops.low_rank.triton import finish
from deepinfer.ops.portable_product import unsummed


class PackedLowRank(NamedTuple):
    """Both matrices as one, `wq_a` above `wkv`; q_norm [rank]."""

    both: Fp8Weight
    q_norm: Tensor


def pack(weights: LowRankWeights) -> PackedLowRank:
    """Stack the matrices in kernel order; no code changes.

    Raises:
        ValueError: a weight is not FP8, or a size or scale does not fit the kernel.
    """
    parts = (linear.pack(weights.wq_a), linear.pack(weights.wkv))
    return PackedLowRank(Fp8Weight(*map(torch.cat, zip(*parts, strict=True))), weights.q_norm)


def low_rank(
    x: Tensor | Quantised, weights: PackedLowRank, *, eps: float, quantise: bool
) -> LowRank:
    """As the reference, for packed weights and an FP8 pair.

    Raises:
        ValueError: `x` is plain.
    """
    if not isinstance(x, Quantised):
        raise ValueError("low_rank: the portable kernels take an FP8 pair; use reference")
    return finish(unsummed(x, weights.both), weights.q_norm, eps, quantise=quantise)


def refuses(
    *, arch: str, rank: int, head_dim: int, hidden: int, quantised: bool, **_facts: object
) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    shapes = ((rank, hidden), (head_dim, hidden))
    return linear.refuses(arch=arch, quantised=quantised, linear_shapes=shapes)
