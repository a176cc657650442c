"""Engram gate; see reference.py for its meaning."""

from deepinfer.ops.engram_gate.reference import EngramGate
from deepinfer.ops.engram_gate.reference import engram_gate as _reference
from deepinfer.ops.registry import Op

engram_gate = Op(_reference)

__all__ = ["EngramGate", "engram_gate"]
