"""The language-model head; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.head import cpu
from deepinfer.ops.head.reference import head as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op

head = Op(_reference)
head.add(
    Implementation(
        "cpu",
        cpu.head,
        refuses=serves,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)

__all__ = ["head"]
