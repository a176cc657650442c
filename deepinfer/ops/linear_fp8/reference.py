"""Quantised linear layer: FP8 activations (groups of 32) times FP8 weights (blocks of 32 x 32).

Knows nothing of what it projects. Source: `spec/model.md` 4; `spec/model-decisions.md` D7-D9, D15.
"""

from torch import Tensor

from deepinfer.ops.formats import Fp8Weight, Quantised
from deepinfer.ops.products import linear


def linear_fp8(x: Tensor | Quantised, weight: Fp8Weight | Tensor) -> Tensor:
    """y = x W^T with the products of decoded codes summed exactly enough and rounded once.

    Args:
        x: [tokens, K] as an FP8 pair, or plain (it is then quantised); K a multiple of 32.
        weight: [out, K]. A plain tensor means debug numerics without quantisers: `x` must be plain.

    Returns:
        [tokens, out] bf16; with a plain weight the dtype of `x`.
    """
    return linear(x, weight)
