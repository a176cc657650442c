"""The language-model head; see reference.py for its meaning."""

from deepinfer.ops.head.reference import head as _reference
from deepinfer.ops.registry import Op

head = Op(_reference)

__all__ = ["head"]
