"""From drawn tokens to longer rows; see reference.py for its meaning."""

from deepinfer.ops.conclude.reference import Concluded, Group, RowTable, finish
from deepinfer.ops.conclude.reference import conclude as _reference
from deepinfer.ops.registry import REFERENCE, Op, lazy

conclude = Op(_reference)
conclude.add(
    lazy(
        conclude,
        "triton",
        needs="triton",
        run="deepinfer.ops.conclude.triton:conclude",
        refuses="deepinfer.ops.conclude.triton:refuses",
        pack="deepinfer.ops.conclude.triton:pack",
        order_class=REFERENCE,
    )
)

__all__ = ["Concluded", "Group", "RowTable", "conclude", "finish"]
