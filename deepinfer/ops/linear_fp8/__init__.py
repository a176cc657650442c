"""Quantised linear layer; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.linear_fp8 import cpu, cpu_f32
from deepinfer.ops.linear_fp8.reference import linear_fp8 as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy

linear_fp8 = Op(_reference)
linear_fp8.add(
    Implementation(
        "cpu_f32",
        cpu_f32.linear_fp8,
        refuses=serves,
        pack=cpu_f32.pack,
        batch_invariant=True,
        order_class="cpu_f32",
    )
)
linear_fp8.add(
    Implementation(
        "cpu",
        cpu.linear_fp8,
        refuses=serves,
        pack=cpu.pack,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)
linear_fp8.add(
    lazy(
        linear_fp8,
        "triton",
        needs="triton",
        run="deepinfer.ops.linear_fp8.triton:linear_fp8",
        refuses="deepinfer.ops.linear_fp8.triton:refuses",
        pack="deepinfer.ops.linear_fp8.triton:pack",
        order_class="sm90",
    )
)
linear_fp8.add(
    lazy(
        linear_fp8,
        "portable",
        needs="triton",
        run="deepinfer.ops.linear_fp8.portable:linear_fp8",
        refuses="deepinfer.ops.linear_fp8.portable:refuses",
        pack="deepinfer.ops.linear_fp8.portable:pack",
        order_class="portable",
    )
)
linear_fp8.add(
    lazy(
        linear_fp8,
        "tilelang",
        needs="tilelang",
        run="deepinfer.ops.linear_fp8.tilelang:linear_fp8",
        refuses="deepinfer.ops.tilelang_refusals:linear",
        pack="deepinfer.ops.linear_fp8.tilelang:pack",
        order_class="tilelang",
    )
)

__all__ = ["linear_fp8"]
