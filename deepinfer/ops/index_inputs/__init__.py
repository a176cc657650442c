"""Index queries; see reference.py for its meaning."""

from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.index_inputs.reference import index_inputs as _reference
from deepinfer.ops.registry import Op

index_inputs = Op(_reference)

__all__ = ["IndexQueries", "index_inputs"]
