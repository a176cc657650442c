"""Grouped output projection; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.grouped_output import cpu, cpu_f32
from deepinfer.ops.grouped_output.reference import OutputWeights
from deepinfer.ops.grouped_output.reference import grouped_output as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy

grouped_output = Op(_reference)
grouped_output.add(
    Implementation(
        "cpu_f32",
        cpu_f32.grouped_output,
        refuses=serves,
        pack=cpu_f32.pack,
        batch_invariant=True,
        order_class="cpu_f32",
    )
)
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
grouped_output.add(
    lazy(
        grouped_output,
        "triton",
        needs="triton",
        run="deepinfer.ops.grouped_output.triton:grouped_output",
        refuses="deepinfer.ops.grouped_output.triton:refuses",
        pack="deepinfer.ops.grouped_output.triton:pack",
        order_class="sm90",
    )
)
grouped_output.add(
    lazy(
        grouped_output,
        "portable",
        needs="triton",
        run="deepinfer.ops.grouped_output.portable:grouped_output",
        refuses="deepinfer.ops.grouped_output.portable:refuses",
        pack="deepinfer.ops.grouped_output.portable:pack",
        order_class="portable",
    )
)

__all__ = ["OutputWeights", "grouped_output"]
