"""RMSNorm with quantisation; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.norm_quantise import cpu
from deepinfer.ops.norm_quantise.reference import Normed
from deepinfer.ops.norm_quantise.reference import norm_quantise as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op, lazy

norm_quantise = Op(_reference)
norm_quantise.add(
    Implementation(
        "cpu",
        cpu.norm_quantise,
        refuses=serves,
        batch_invariant=True,
        order_class=REFERENCE,
    )
)
norm_quantise.add(
    lazy(
        norm_quantise,
        "triton",
        needs="triton",
        run="deepinfer.ops.norm_quantise.triton:norm_quantise",
        refuses="deepinfer.ops.norm_quantise.triton:refuses",
        pack="deepinfer.ops.norm_quantise.triton:pack",
        order_class="triton",
    )
)
norm_quantise.add(
    lazy(
        norm_quantise,
        "tilelang",
        needs="tilelang",
        run="deepinfer.ops.norm_quantise.tilelang:norm_quantise",
        refuses="deepinfer.ops.tilelang_refusals:query",
        pack="deepinfer.ops.norm_quantise.tilelang:pack",
        order_class="tilelang",
    )
)

__all__ = ["Normed", "norm_quantise"]
