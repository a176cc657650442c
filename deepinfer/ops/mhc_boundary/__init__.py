"""The step between two sub-layers; see reference.py for its meaning."""

from deepinfer.ops.mhc_boundary.reference import (
    Boundary,
    Coefficients,
    HyperWeights,
    coefficients,
    split_coefficients,
)
from deepinfer.ops.mhc_boundary.reference import mhc_boundary as _reference
from deepinfer.ops.registry import Op

mhc_boundary = Op(_reference)

__all__ = [
    "Boundary",
    "Coefficients",
    "HyperWeights",
    "coefficients",
    "mhc_boundary",
    "split_coefficients",
]
