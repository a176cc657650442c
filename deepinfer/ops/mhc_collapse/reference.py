"""Collapses the residual streams to one vector and normalises it. Knows no sub-layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.products import rms_norm


class Collapsed(NamedTuple):
    """The collapse and its RMSNorm, both [tokens, hidden] in the dtype of the streams."""

    plain: Tensor
    normed: Tensor


def mhc_collapse(streams: Tensor, pre: Tensor, norm: Tensor, eps: float) -> Collapsed:
    """h = sum_j pre_j * X_j in fp32, rounded; then RMSNorm of the rounded h (D22).

    Args:
        streams: [tokens, m, hidden] bf16 or fp32.
        pre: [tokens, m] fp32 collapse weights of the sub-layer before.
        norm: [hidden] norm weight.
        eps: config key `rms_norm_eps`.
    """
    x = streams.to(torch.float32)
    total = torch.zeros_like(x[:, 0])
    for stream in range(x.shape[1]):
        total += pre[:, stream, None] * x[:, stream]
    plain = total.to(streams.dtype)
    return Collapsed(plain, rms_norm(plain, norm, eps))
