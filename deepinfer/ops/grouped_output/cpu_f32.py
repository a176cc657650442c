"""Output projection on the CPU: decoded weights, sums in fp32. Knows nothing of attention."""

from __future__ import annotations

from torch import Tensor

from deepinfer.ops.cpu_codes import decoded
from deepinfer.ops.cpu_rows import grouped_product, keep_fp8, product
from deepinfer.ops.grouped_output.reference import OutputWeights


def pack(weights: OutputWeights) -> OutputWeights:
    """Both matrices decoded."""
    return OutputWeights(*(keep_fp8(weight) for weight in weights))


def grouped_output(o: Tensor, weights: OutputWeights, *, groups: int) -> Tensor:
    """As the reference but for the order of sums, for weights that `pack` decoded."""
    wo_a, wo_b = weights
    assert isinstance(wo_a, Tensor), "pack decodes the weights"
    assert isinstance(wo_b, Tensor), "pack decodes the weights"
    grouped = o.flatten(1).unflatten(1, (groups, -1))
    low = grouped_product(grouped, wo_a.unflatten(0, (groups, -1))).flatten(1).to(o.dtype)
    return product(decoded(low), wo_b).to(o.dtype)
