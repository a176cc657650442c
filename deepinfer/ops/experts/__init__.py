"""Routed experts; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.experts import cpu
from deepinfer.ops.experts.reference import ExpertWeights
from deepinfer.ops.experts.reference import experts as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy

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
experts.add(
    lazy(
        experts,
        "triton",
        needs="triton",
        run="deepinfer.ops.experts.triton:experts",
        refuses="deepinfer.ops.experts.triton:refuses",
        pack="deepinfer.ops.experts.packing:pack",
        order_class="sm90",
    )
)

__all__ = ["ExpertWeights", "experts"]
