"""Window and selected attention; see reference.py for its meaning."""

from deepinfer.ops.registry import Op
from deepinfer.ops.sparse_attention.reference import sparse_attention as _reference

sparse_attention = Op(_reference)

__all__ = ["sparse_attention"]
