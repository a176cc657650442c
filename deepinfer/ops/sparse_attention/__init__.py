"""Window and selected attention; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.registry import REFERENCE, Implementation, Op
from deepinfer.ops.sparse_attention import cpu
from deepinfer.ops.sparse_attention.reference import sparse_attention as _reference

sparse_attention = Op(_reference)
sparse_attention.add(
    Implementation(
        "cpu",
        cpu.sparse_attention,
        refuses=serves,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)

__all__ = ["sparse_attention"]
