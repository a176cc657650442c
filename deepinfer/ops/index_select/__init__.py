"""The indexer; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.index_select import cpu
from deepinfer.ops.index_select.reference import CandidateRule, Selection
from deepinfer.ops.index_select.reference import index_select as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op

index_select = Op(_reference)
index_select.add(
    Implementation(
        "cpu",
        cpu.index_select,
        refuses=serves,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)

__all__ = ["CandidateRule", "Selection", "index_select"]
