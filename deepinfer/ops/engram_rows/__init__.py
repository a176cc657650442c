"""Engram hashing; see reference.py for its meaning."""

from deepinfer.ops.engram_rows.reference import EngramHash
from deepinfer.ops.engram_rows.reference import engram_rows as _reference
from deepinfer.ops.registry import REFERENCE, Op, lazy

engram_rows = Op(_reference)
engram_rows.add(
    lazy(
        engram_rows,
        "triton",
        needs="triton",
        run="deepinfer.ops.engram_rows.triton:engram_rows",
        refuses="deepinfer.ops.engram_rows.triton:refuses",
        pack="deepinfer.ops.engram_rows.triton:pack",
        order_class=REFERENCE,
    )
)

__all__ = ["EngramHash", "engram_rows"]
