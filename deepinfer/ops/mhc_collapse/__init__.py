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

__all__ = ["Collapsed", "mhc_collapse"]
