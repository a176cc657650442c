"""Output projection in plain Triton: all groups in one launch, then an FP8 linear layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.formats import Fp8Weight
from deepinfer.ops.grouped_output.reference import OutputWeights
from deepinfer.ops.linear_fp8 import portable as linear
from deepinfer.ops.portable_product import refuses_shape, unsummed
from deepinfer.ops.triton_rows import sum_quantise


class PackedOutput(NamedTuple):
    """Both matrices as the product takes them."""

    wo_a: Fp8Weight
    wo_b: Fp8Weight


def pack(weights: OutputWeights) -> PackedOutput:
    """Both matrices in kernel order; as many bytes as before."""
    return PackedOutput(linear.pack(weights.wo_a), linear.pack(weights.wo_b))


def grouped_output(o: Tensor, weights: PackedOutput, *, groups: int) -> Tensor:
    """As the reference, for what `pack` returned and bf16 `o`.

    Raises:
        ValueError: `o` is not bf16.
    """
    if o.dtype != torch.bfloat16:
        raise ValueError(f"grouped_output: the portable kernels take bf16, not {o.dtype}")
    low = sum_quantise(unsummed(o.flatten(1).contiguous(), weights.wo_a, groups))
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
    if not o_groups:
        return "the output has no groups"
    if why_not := refuses_shape(o_rank, heads * head_dim // o_groups):
        return f"{o_groups} groups: {why_not}"
    shapes = ((hidden, o_groups * o_rank),)
    return linear.refuses(arch=arch, quantised=quantised, linear_shapes=shapes)
