"""Grouped output projection; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.grouped_output import cpu
from deepinfer.ops.grouped_output.reference import OutputWeights
from deepinfer.ops.grouped_output.reference import grouped_output as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op

grouped_output = Op(_reference)
grouped_output.add(
    Implementation(
        "cpu",
        cpu.grouped_output,
        refuses=serves,
        pack=cpu.pack,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)

__all__ = ["OutputWeights", "grouped_output"]
