"""Grouped output projection; see reference.py for its meaning."""

from deepinfer.ops.grouped_output.reference import OutputWeights
from deepinfer.ops.grouped_output.reference import grouped_output as _reference
from deepinfer.ops.registry import Op

grouped_output = Op(_reference)

__all__ = ["OutputWeights", "grouped_output"]
