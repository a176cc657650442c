"""Output projection of attention: a low-rank product a group of heads, then one for all.

Knows nothing of attention. Source: `spec/model.md` 6.1; `spec/model-decisions.md` D33.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.formats import Fp8Weight, dequantise_fp8_weight
from deepinfer.ops.products import linear, matmul


class OutputWeights(NamedTuple):
    """wo_a [groups * rank, heads / groups * head_dim], wo_b [hidden, groups * rank]."""

    wo_a: Fp8Weight | Tensor
    wo_b: Fp8Weight | Tensor


def grouped_output(o: Tensor, weights: OutputWeights, *, groups: int) -> Tensor:
    """Project attention outputs back to the hidden size.

    `wo_a` multiplies the unquantised output with its decoded weight; its result is rounded, then
    `wo_b` is an ordinary quantised linear layer.

    Args:
        o: [tokens, heads, head_dim] bf16 or fp32.
        weights: both matrices.
        groups: config key `o_groups`.

    Returns:
        [tokens, hidden] in the dtype of `o`.
    """
    wo_a = weights.wo_a
    if isinstance(wo_a, Fp8Weight):
        wo_a = dequantise_fp8_weight(wo_a)
    grouped = o.flatten(1).unflatten(1, (groups, -1))
    low = [matmul(grouped[:, g], w) for g, w in enumerate(wo_a.chunk(groups))]
    return linear(torch.cat(low, dim=-1).to(o.dtype), weights.wo_b)
