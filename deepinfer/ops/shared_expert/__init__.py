"""The shared expert; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy
from deepinfer.ops.shared_expert import cpu, cpu_f32
from deepinfer.ops.shared_expert.reference import SharedWeights
from deepinfer.ops.shared_expert.reference import shared_expert as _reference

shared_expert = Op(_reference)
shared_expert.add(
    Implementation(
        "cpu_f32",
        cpu_f32.shared_expert,
        refuses=serves,
        pack=cpu_f32.pack,
        batch_invariant=True,
        order_class="cpu_f32",
    )
)
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
shared_expert.add(
    lazy(
        shared_expert,
        "triton",
        needs="triton",
        run="deepinfer.ops.shared_expert.triton:shared_expert",
        refuses="deepinfer.ops.shared_expert.triton:refuses",
        pack="deepinfer.ops.shared_expert.triton:pack",
        order_class="sm90",
    )
)
shared_expert.add(
    lazy(
        shared_expert,
        "portable",
        needs="triton",
        run="deepinfer.ops.shared_expert.portable:shared_expert",
        refuses="deepinfer.ops.shared_expert.portable:refuses",
        pack="deepinfer.ops.shared_expert.portable:pack",
        order_class="portable",
    )
)

__all__ = ["SharedWeights", "shared_expert"]
