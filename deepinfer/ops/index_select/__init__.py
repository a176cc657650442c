"""The indexer; see reference.py for its meaning."""

from deepinfer.ops.index_select.reference import CandidateRule, Selection
from deepinfer.ops.index_select.reference import index_select as _reference
from deepinfer.ops.registry import Op

index_select = Op(_reference)

__all__ = ["CandidateRule", "Selection", "index_select"]
