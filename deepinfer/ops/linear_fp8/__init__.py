"""Quantised linear layer; see reference.py for its meaning."""

from deepinfer.ops.linear_fp8.reference import linear_fp8 as _reference
from deepinfer.ops.registry import Op

linear_fp8 = Op(_reference)

__all__ = ["linear_fp8"]
