"""RMSNorm with quantisation; see reference.py for its meaning."""

from deepinfer.ops.norm_quantise.reference import Normed
from deepinfer.ops.norm_quantise.reference import norm_quantise as _reference
from deepinfer.ops.registry import Op

norm_quantise = Op(_reference)

__all__ = ["Normed", "norm_quantise"]
