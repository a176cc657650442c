"""Engram gate; see reference.py for its meaning."""

from deepinfer.ops.engram_gate.reference import EngramGate
from deepinfer.ops.engram_gate.reference import engram_gate as _reference
from deepinfer.ops.registry import Op, lazy

engram_gate = Op(_reference)
engram_gate.add(
    lazy(
        engram_gate,
        "triton",
        needs="triton",
        run="deepinfer.ops.engram_gate.triton:engram_gate",
        refuses="deepinfer.ops.engram_gate.triton:refuses",
        pack="deepinfer.ops.engram_gate.triton:pack",
        order_class="triton",
    )
)

__all__ = ["EngramGate", "engram_gate"]
