"""Routed experts; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.experts import cpu, cpu_f32, every
from deepinfer.ops.experts.reference import ExpertWeights
from deepinfer.ops.experts.reference import experts as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy

experts = Op(_reference, graph_safe=False)  # it asks the device which experts are chosen
experts.add(
    Implementation(
        "cpu_f32",
        cpu_f32.experts,
        refuses=serves,
        pack=cpu_f32.pack,
        batch_invariant=True,
        order_class="cpu_f32",
    )
)
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
experts.add(
    lazy(
        experts,
        "portable",
        needs="triton",
        run="deepinfer.ops.experts.portable:experts",
        refuses="deepinfer.ops.experts.portable:refuses",
        pack="deepinfer.ops.experts.portable:pack",
        order_class="portable",
    )
)
experts.add(
    Implementation(
        "every",
        every.experts,
        refuses=every.refuses,
        batch_invariant=True,
        graph_safe=True,
        order_class=REFERENCE,
    )
)

__all__ = ["ExpertWeights", "experts"]
