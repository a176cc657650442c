"""Output projection on Hopper: all groups in one launch, then the FP8 linear kernel."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from deepinfer.ops.grouped_output.packing import LEAST_COLUMNS, PackedLow
from deepinfer.ops.grouped_output.packing import pack as pack_low
from deepinfer.ops.grouped_output.reference import OutputWeights
from deepinfer.ops.grouped_output.triton_low import low_rank
from deepinfer.ops.linear_fp8 import triton as linear
from deepinfer.ops.triton_rows import sum_quantise


class PackedOutput(NamedTuple):
    """Both matrices, each as its kernel takes it."""

    wo_a: PackedLow
    wo_b: linear.PackedLinear


def pack(weights: OutputWeights) -> PackedOutput:
    """Both matrices in kernel order; as many bytes as before."""
    return PackedOutput(pack_low(weights.wo_a), linear.pack(weights.wo_b))


def grouped_output(o: Tensor, weights: PackedOutput, *, groups: int) -> Tensor:
    """As the reference, for weights that `pack` reordered and bf16 `o`."""
    low = sum_quantise(low_rank(o.flatten(1).contiguous(), weights.wo_a, groups))
    return linear.linear_fp8(low, weights.wo_b)


def refuses(
    *,
    arch: str,
    quantised: bool,
    hidden: int,
    heads: int,
    head_dim: int,
    o_rank: int = 0,
    o_groups: int = 0,
    **_facts: object,
) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    width = heads * head_dim // o_groups if o_groups else 0
    if not o_rank or o_rank % 128 or width % 128 or width < LEAST_COLUMNS:
        return (
            f"{o_groups} groups of [{o_rank}, {width}]; wants multiples of 128, {LEAST_COLUMNS} on"
        )
    shapes = ((hidden, o_groups * o_rank),)
    return linear.refuses(arch=arch, quantised=quantised, linear_shapes=shapes)
