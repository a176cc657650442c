"""Expert choice; see reference.py for its meaning."""

from deepinfer.ops.registry import Op
from deepinfer.ops.route.reference import Routing
from deepinfer.ops.route.reference import route as _reference

route = Op(_reference)

__all__ = ["Routing", "route"]
