"""The compressor; see reference.py for its meaning."""

from deepinfer.ops.compress.reference import CompressorWeights
from deepinfer.ops.compress.reference import compress as _reference
from deepinfer.ops.registry import Op

compress = Op(_reference)

__all__ = ["CompressorWeights", "compress"]
