"""Products, row statistics and curves of the reference operations, with no visible order.

Sums and transcendental functions run in float64 and are rounded to fp32 once, so that a row's bits
do not depend on the number of rows, the thread count or the device (up to double rounding at
2^-53). Knows nothing of formats beyond decoding them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from deepinfer.ops.formats import (
    Fp8Weight,
    Quantised,
    dequantise_fp8,
    dequantise_fp8_weight,
    quantise_fp8,
)

WIDE = torch.float64


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [*, K] times weight [out, K] transposed -> fp32 [*, out]."""
    return (x.to(WIDE) @ weight.to(WIDE).mT).to(torch.float32)


def linear(x: Tensor | Quantised, weight: Fp8Weight | Tensor) -> Tensor:
    """A linear layer in the format of its weight.

    An FP8 weight takes FP8 input: a plain `x` is quantised first, and the result is bf16. A plain
    weight takes a plain `x`, and the result has the dtype of `x`.

    Args:
        x: [*, K] bf16 or fp32, or its FP8 pair.
        weight: [out, K].

    Returns:
        [*, out], bf16 with an FP8 weight, else the dtype of `x`.
    """
    if isinstance(weight, Fp8Weight):
        pair = x if isinstance(x, Quantised) else quantise_fp8(x)
        return matmul(dequantise_fp8(pair), dequantise_fp8_weight(weight)).to(torch.bfloat16)
    assert isinstance(x, Tensor), "a plain weight needs a plain input"
    return matmul(x, weight).to(x.dtype)


def curve(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """`function` (exp, sigmoid, ...) of every element in float64, rounded once to fp32.

    In fp32 the vectorised and the scalar code of such a function differ in the last bit, and which
    of them an element meets depends on its place in the tensor.
    """
    return function(x.to(WIDE)).to(torch.float32)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)) of fp32, each step rounded to fp32."""
    return 1 / (1 + curve(torch.exp, -x))


def mean_square(x: Tensor) -> Tensor:
    """Mean of squares over the last axis, [*, n] -> fp32 [*, 1]."""
    return x.to(WIDE).square().mean(-1, keepdim=True).to(torch.float32)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """w * (x * rsqrt(mean(x^2) + eps)) in fp32, rounded once to the dtype of `x` (D6).

    Args:
        x: [*, n] bf16 or fp32.
        weight: [n].
        eps: config key `rms_norm_eps`; a zero row stays zero.
    """
    wide = x.to(torch.float32)
    normed = wide * torch.rsqrt(mean_square(x) + eps)
    return (weight.to(torch.float32) * normed).to(x.dtype)
