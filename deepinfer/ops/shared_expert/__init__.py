"""The shared expert; see reference.py for its meaning."""

from deepinfer.ops.registry import Op
from deepinfer.ops.shared_expert.reference import SharedWeights
from deepinfer.ops.shared_expert.reference import shared_expert as _reference

shared_expert = Op(_reference)

__all__ = ["SharedWeights", "shared_expert"]
