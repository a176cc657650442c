"""Engram hashing; see reference.py for its meaning."""

from deepinfer.ops.engram_rows.reference import EngramHash
from deepinfer.ops.engram_rows.reference import engram_rows as _reference
from deepinfer.ops.registry import Op

engram_rows = Op(_reference)

__all__ = ["EngramHash", "engram_rows"]
