"""The expert that every token uses; FP8 weights, no routing weight (D26)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.experts.reference import feed_forward, plain_weight
from deepinfer.ops.formats import Fp8Weight, Quantised, dequantise_fp8


class SharedWeights(NamedTuple):
    """w13 [2 * inner, d] (gate rows, then up), w2 [d, inner]; FP8, or plain in debug numerics."""

    w13: Fp8Weight | Tensor
    w2: Fp8Weight | Tensor


def shared_expert(x: Tensor | Quantised, weights: SharedWeights, *, limit: float) -> Tensor:
    """Clamped SwiGLU of every token.

    Args:
        x: [tokens, d] as an FP8 pair, or plain in debug numerics.
        weights: of the shared expert.
        limit: config key `swiglu_limit`.

    Returns:
        [tokens, d] bf16, or the dtype of a plain `x`.
    """
    plain = dequantise_fp8(x) if isinstance(x, Quantised) else x
    dtype = torch.bfloat16 if isinstance(x, Quantised) else x.dtype
    w13, w2 = plain_weight(weights.w13), plain_weight(weights.w2)
    return feed_forward(plain, w13, w2, limit, dtype, None)
