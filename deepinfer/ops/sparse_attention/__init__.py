"""Window and selected attention; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy
from deepinfer.ops.sparse_attention import cpu, cpu_f32
from deepinfer.ops.sparse_attention.reference import sparse_attention as _reference
from deepinfer.ops.sparse_attention.scratch import workspace

sparse_attention = Op(_reference)
sparse_attention.add(
    Implementation(
        "cpu_f32",
        cpu_f32.sparse_attention,
        refuses=serves,
        batch_invariant=True,
        order_class="cpu_f32",
    )
)
sparse_attention.add(
    Implementation(
        "cpu",
        cpu.sparse_attention,
        refuses=serves,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)
sparse_attention.add(
    lazy(
        sparse_attention,
        "triton",
        needs="triton",
        run="deepinfer.ops.sparse_attention.triton:sparse_attention",
        refuses="deepinfer.ops.sparse_attention.triton:refuses",
        pack="deepinfer.ops.sparse_attention.triton:pack",
        order_class="triton",
        workspace=workspace,
    )
)
sparse_attention.add(
    lazy(
        sparse_attention,
        "portable",
        needs="triton",
        run="deepinfer.ops.sparse_attention.portable:sparse_attention",
        refuses="deepinfer.ops.sparse_attention.portable:refuses",
        pack="deepinfer.ops.sparse_attention.triton:pack",
        order_class="triton",
        workspace=workspace,
    )
)

__all__ = ["sparse_attention"]
