"""Routed experts; see reference.py for its meaning."""

from deepinfer.ops.experts.reference import ExpertWeights
from deepinfer.ops.experts.reference import experts as _reference
from deepinfer.ops.registry import Op

experts = Op(_reference)

__all__ = ["ExpertWeights", "experts"]
