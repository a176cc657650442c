"""The shared expert on the CPU: weights decoded once, sums in fp32. Knows no routing."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.ops.cpu_codes import decoded
from deepinfer.ops.cpu_rows import keep_fp8, product
from deepinfer.ops.experts.reference import swiglu_clamp
from deepinfer.ops.formats import Quantised
from deepinfer.ops.shared_expert.reference import SharedWeights


def pack(weights: SharedWeights) -> SharedWeights:
    """Both matrices decoded."""
    return SharedWeights(*(keep_fp8(weight) for weight in weights))


def shared_expert(x: Tensor | Quantised, weights: SharedWeights, *, limit: float) -> Tensor:
    """As the reference but for the order of sums, for weights that `pack` decoded."""
    w13, w2 = weights
    assert isinstance(w13, Tensor), "pack decodes the weights"
    assert isinstance(w2, Tensor), "pack decodes the weights"
    inner = swiglu_clamp(product(decoded(x), w13).to(torch.bfloat16), limit)
    return product(decoded(inner.to(torch.bfloat16)), w2).to(torch.bfloat16)
