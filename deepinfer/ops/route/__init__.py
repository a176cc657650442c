"""Expert choice; see reference.py for its meaning."""

from deepinfer.ops.route.reference import Routing
from deepinfer.ops.route.reference import route as _reference
from deepinfer.ops.registry import Op

route = Op(_reference)

__all__ = ["Routing", "route"]
