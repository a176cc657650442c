"""The shared expert in plain Triton: two FP8 linear layers with the activation between them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from deepinfer.ops.formats import Fp8Weight, Quantised
from deepinfer.ops.linear_fp8 import portable as linear
from deepinfer.ops.portable_product import unsummed
from deepinfer.ops.shared_expert.reference import SharedWeights
from deepinfer.ops.triton_rows import swiglu


class PackedShared(NamedTuple):
    """Both matrices as the product takes them."""

    w13: Fp8Weight
    w2: Fp8Weight


def pack(weights: SharedWeights) -> PackedShared:
    """Both matrices in kernel order; as many bytes as before."""
    return PackedShared(linear.pack(weights.w13), linear.pack(weights.w2))


def shared_expert(x: Tensor | Quantised, weights: PackedShared, *, limit: float) -> Tensor:
    """As the reference, for what `pack` returned and an FP8 pair.

    Raises:
        ValueError: `x` is plain.
    """
    if not isinstance(x, Quantised):
        raise ValueError("shared_expert: the portable kernels take an FP8 pair; use reference")
    return linear.linear_fp8(swiglu(unsummed(x, weights.w13), limit), weights.w2)


def refuses(*, arch: str, hidden: int, inner: int, quantised: bool, **_facts: object) -> str | None:
    """None if the kernels serve, else why not; facts as `Op.bind` passes them."""
    shapes = ((2 * inner, hidden), (hidden, inner))
    return linear.refuses(arch=arch, quantised=quantised, linear_shapes=shapes)
