"""The language-model head; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.head import cpu, cpu_f32
from deepinfer.ops.head.reference import head as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy

head = Op(_reference)
head.add(
    Implementation(
        "cpu_f32",
        cpu_f32.head,
        refuses=serves,
        pack=cpu_f32.pack,
        batch_invariant=True,
        order_class="cpu_f32",
    )
)
head.add(
    Implementation(
        "cpu",
        cpu.head,
        refuses=serves,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)
head.add(
    lazy(
        head,
        "hopper",
        needs="triton",
        run="deepinfer.ops.head.hopper:head",
        refuses="deepinfer.ops.head.hopper:refuses",
        pack="deepinfer.ops.head.triton:pack",
        order_class="triton",
    )
)
head.add(
    lazy(
        head,
        "triton",
        needs="triton",
        run="deepinfer.ops.head.triton:head",
        refuses="deepinfer.ops.head.triton:refuses",
        pack="deepinfer.ops.head.triton:pack",
        order_class="triton",
    )
)

__all__ = ["head"]
