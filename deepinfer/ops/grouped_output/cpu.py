"""Output projection on the CPU: decoded weights, all groups in one batched product.

Bits equal the reference's. Knows nothing of attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.ops.cpu_tiles import hold_fp8, product, wide_input
from deepinfer.ops.grouped_output.reference import OutputWeights
from deepinfer.ops.products import WIDE


def pack(weights: OutputWeights) -> OutputWeights:
    """Both matrices decoded."""
    return OutputWeights(*(hold_fp8(weight) for weight in weights))


def grouped_output(o: Tensor, weights: OutputWeights, *, groups: int) -> Tensor:
    """As the reference, for weights that `pack` decoded."""
    wo_a, wo_b = weights
    assert isinstance(wo_a, Tensor), "pack decodes the weights"
    assert isinstance(wo_b, Tensor), "pack decodes the weights"
    grouped = o.flatten(1).unflatten(1, (groups, -1)).transpose(0, 1).to(WIDE)
    low = grouped @ wo_a.unflatten(0, (groups, -1)).to(WIDE).mT
    low = low.to(torch.float32).transpose(0, 1).flatten(1).to(o.dtype)
    return product(wide_input(low), wo_b).to(o.dtype)
