"""Stream collapse and norm; see reference.py for its meaning."""

from deepinfer.ops.mhc_collapse.reference import Collapsed
from deepinfer.ops.mhc_collapse.reference import mhc_collapse as _reference
from deepinfer.ops.registry import Op, lazy

mhc_collapse = Op(_reference)
mhc_collapse.add(
    lazy(
        mhc_collapse,
        "triton",
        needs="triton",
        run="deepinfer.ops.mhc_collapse.triton:mhc_collapse",
        refuses="deepinfer.ops.mhc_collapse.triton:refuses",
        pack="deepinfer.ops.mhc_collapse.triton:pack",
        order_class="triton",
    )
)
mhc_collapse.add(
    lazy(
        mhc_collapse,
        "tilelang",
        needs="tilelang",
        run="deepinfer.ops.mhc_collapse.tilelang:mhc_collapse",
        refuses="deepinfer.ops.tilelang_refusals:streams",
        pack="deepinfer.ops.mhc_collapse.tilelang:pack",
        order_class="tilelang",
    )
)

__all__ = ["Collapsed", "mhc_collapse"]
