"""Attention of a draft block; see reference.py for its meaning."""

from deepinfer.ops.draft_attention.reference import draft_attention as _reference
from deepinfer.ops.registry import Op

draft_attention = Op(_reference)

__all__ = ["draft_attention"]
