"""The shared expert; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.registry import REFERENCE, Implementation, Op
from deepinfer.ops.shared_expert import cpu
from deepinfer.ops.shared_expert.reference import SharedWeights
from deepinfer.ops.shared_expert.reference import shared_expert as _reference

shared_expert = Op(_reference)
shared_expert.add(
    Implementation(
        "cpu",
        cpu.shared_expert,
        refuses=serves,
        pack=cpu.pack,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)

__all__ = ["SharedWeights", "shared_expert"]
