"""Quantised linear layer on the CPU: the weight decoded once, sums in fp32.

Knows nothing of what it projects.
"""

import torch
from torch import Tensor

from deepinfer.ops.cpu_codes import decoded
from deepinfer.ops.cpu_rows import keep_fp8, product
from deepinfer.ops.formats import Fp8Weight, Quantised

pack = keep_fp8


def linear_fp8(x: Tensor | Quantised, weight: Fp8Weight | Tensor) -> Tensor:
    """As the reference but for the order of sums, for a weight [out, K] that `pack` decoded."""
    assert isinstance(weight, Tensor), "pack decodes the weight"
    return product(decoded(x), weight).to(torch.bfloat16)
