"""Expert choice; see reference.py for its meaning."""

from deepinfer.ops.registry import Op, lazy
from deepinfer.ops.route.reference import Routing
from deepinfer.ops.route.reference import route as _reference

route = Op(_reference)
route.add(
    lazy(
        route,
        "triton",
        needs="triton",
        run="deepinfer.ops.route.triton:route",
        refuses="deepinfer.ops.route.triton:refuses",
        pack="deepinfer.ops.route.triton:pack",
        order_class="triton",
    )
)

__all__ = ["Routing", "route"]
