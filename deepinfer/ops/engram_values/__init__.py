"""Values of Engram rows; see reference.py for its meaning."""

from deepinfer.ops.engram_values.reference import engram_values as _reference
from deepinfer.ops.registry import REFERENCE, Op, lazy

engram_values = Op(_reference)
engram_values.add(
    lazy(
        engram_values,
        "triton",
        needs="triton",
        run="deepinfer.ops.engram_values.triton:engram_values",
        refuses="deepinfer.ops.engram_values.triton:refuses",
        pack="deepinfer.ops.engram_values.triton:pack",
        order_class=REFERENCE,
    )
)

__all__ = ["engram_values"]
