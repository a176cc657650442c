"""Residual-stream update; see reference.py for its meaning."""

from deepinfer.ops.mhc_update.reference import Pending
from deepinfer.ops.mhc_update.reference import mhc_update as _reference
from deepinfer.ops.registry import REFERENCE, Op, lazy

mhc_update = Op(_reference)
mhc_update.add(
    lazy(
        mhc_update,
        "triton",
        needs="triton",
        run="deepinfer.ops.mhc_update.triton:mhc_update",
        refuses="deepinfer.ops.mhc_update.triton:refuses",
        pack="deepinfer.ops.mhc_update.triton:pack",
        order_class=REFERENCE,
    )
)
mhc_update.add(
    lazy(
        mhc_update,
        "tilelang",
        needs="tilelang",
        run="deepinfer.ops.mhc_update.tilelang:mhc_update",
        refuses="deepinfer.ops.tilelang_refusals:streams",
        pack="deepinfer.ops.mhc_update.tilelang:pack",
        order_class="tilelang",
    )
)

__all__ = ["Pending", "mhc_update"]
