"""Routed experts; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.experts import cpu
from deepinfer.ops.experts.reference import ExpertWeights
from deepinfer.ops.experts.reference import experts as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op

experts = Op(_reference)
experts.add(
    Implementation(
        "cpu",
        cpu.experts,
        refuses=serves,
        pack=cpu.pack,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)

__all__ = ["ExpertWeights", "experts"]
