"""Index queries; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.index_inputs import cpu
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.index_inputs.reference import index_inputs as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy

index_inputs = Op(_reference)
index_inputs.add(
    Implementation(
        "cpu",
        cpu.index_inputs,
        refuses=serves,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)
index_inputs.add(
    lazy(
        index_inputs,
        "triton",
        needs="triton",
        run="deepinfer.ops.index_inputs.triton:index_inputs",
        refuses="deepinfer.ops.index_inputs.triton:refuses",
        pack="deepinfer.ops.index_inputs.triton:pack",
        order_class="triton",
    )
)

__all__ = ["IndexQueries", "index_inputs"]
