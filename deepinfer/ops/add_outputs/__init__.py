"""The sum of routed and shared experts; see reference.py for its meaning."""

from deepinfer.ops.add_outputs.reference import add_outputs as _reference
from deepinfer.ops.registry import Op, lazy

add_outputs = Op(_reference)
add_outputs.add(
    lazy(
        add_outputs,
        "triton",
        needs="triton",
        run="deepinfer.ops.add_outputs.triton:add_outputs",
        refuses="deepinfer.ops.add_outputs.triton:refuses",
        pack="deepinfer.ops.add_outputs.triton:pack",
        order_class="triton",
    )
)
add_outputs.add(
    lazy(
        add_outputs,
        "tilelang",
        needs="tilelang",
        run="deepinfer.ops.add_outputs.tilelang:add_outputs",
        refuses="deepinfer.ops.tilelang_refusals:streams",
        pack="deepinfer.ops.add_outputs.tilelang:pack",
        order_class="tilelang",
    )
)

__all__ = ["add_outputs"]
