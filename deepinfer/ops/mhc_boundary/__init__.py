"""The step between two sub-layers; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.mhc_boundary import cpu, cpu_f32
from deepinfer.ops.mhc_boundary.reference import (
    Boundary,
    Coefficients,
    HyperWeights,
    coefficients,
    split_coefficients,
)
from deepinfer.ops.mhc_boundary.reference import mhc_boundary as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy

mhc_boundary = Op(_reference)
mhc_boundary.add(
    Implementation(
        "cpu_f32",
        cpu_f32.mhc_boundary,
        refuses=serves,
        pack=cpu_f32.pack,
        batch_invariant=True,
        order_class="cpu_f32",
    )
)
mhc_boundary.add(
    Implementation(
        "cpu",
        cpu.mhc_boundary,
        refuses=serves,
        pack=cpu.pack,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)
mhc_boundary.add(
    lazy(
        mhc_boundary,
        "triton",
        needs="triton",
        run="deepinfer.ops.mhc_boundary.triton:mhc_boundary",
        refuses="deepinfer.ops.mhc_boundary.triton:refuses",
        pack="deepinfer.ops.mhc_boundary.triton:pack",
        order_class="triton",
    )
)
mhc_boundary.add(
    lazy(
        mhc_boundary,
        "portable",
        needs="triton",
        run="deepinfer.ops.mhc_boundary.portable:mhc_boundary",
        refuses="deepinfer.ops.mhc_boundary.portable:refuses",
        pack="deepinfer.ops.mhc_boundary.portable:pack",
        order_class="triton",
    )
)

__all__ = [
    "Boundary",
    "Coefficients",
    "HyperWeights",
    "coefficients",
    "mhc_boundary",
    "split_coefficients",
]
