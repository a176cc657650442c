"""Quantised linear layer on the CPU: the weight decoded once, sums in float64.

Bits equal the reference's. Knows nothing of what it projects.
"""

import torch
from torch import Tensor

from deepinfer.ops.cpu_tiles import hold_fp8, product, wide_input
from deepinfer.ops.formats import Fp8Weight, Quantised

pack = hold_fp8


def linear_fp8(x: Tensor | Quantised, weight: Fp8Weight | Tensor) -> Tensor:
    """As the reference, for a weight [out, K] that `pack` decoded."""
    assert isinstance(weight, Tensor), "pack decodes the weight"
    return product(wide_input(x), weight).to(torch.bfloat16)
