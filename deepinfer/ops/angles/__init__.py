"""Rotation angles; see reference.py for its meaning."""

from deepinfer.ops.angles.reference import angles as _reference
from deepinfer.ops.registry import Op, lazy

angles = Op(_reference)
angles.add(
    lazy(
        angles,
        "triton",
        needs="triton",
        run="deepinfer.ops.angles.triton:angles",
        refuses="deepinfer.ops.angles.triton:refuses",
        pack="deepinfer.ops.angles.triton:pack",
        order_class="triton",
    )
)

__all__ = ["angles"]
