"""The indexer; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.index_select import cpu, cpu_f32
from deepinfer.ops.index_select.reference import CandidateRule, Selection
from deepinfer.ops.index_select.reference import index_select as _reference
from deepinfer.ops.index_select.scratch import workspace
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy

index_select = Op(_reference)
index_select.add(
    Implementation(
        "cpu_f32",
        cpu_f32.index_select,
        refuses=serves,
        batch_invariant=True,
        order_class="cpu_f32",
    )
)
index_select.add(
    Implementation(
        "cpu",
        cpu.index_select,
        refuses=serves,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)
index_select.add(
    lazy(
        index_select,
        "hopper",
        needs="triton",
        run="deepinfer.ops.index_select.hopper:index_select",
        refuses="deepinfer.ops.index_select.hopper:refuses",
        pack="deepinfer.ops.index_select.triton:pack",
        order_class="triton",
        workspace=workspace,
    )
)
index_select.add(
    lazy(
        index_select,
        "triton",
        needs="triton",
        run="deepinfer.ops.index_select.triton:index_select",
        refuses="deepinfer.ops.index_select.triton:refuses",
        pack="deepinfer.ops.index_select.triton:pack",
        order_class="triton",
        workspace=workspace,
    )
)

__all__ = ["CandidateRule", "Selection", "index_select"]
