"""RMSNorm with quantisation; see reference.py for its meaning."""

from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.norm_quantise import cpu
from deepinfer.ops.norm_quantise.reference import Normed
from deepinfer.ops.norm_quantise.reference import norm_quantise as _reference
from deepinfer.ops.registry import REFERENCE, Implementation, Op

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

__all__ = ["Normed", "norm_quantise"]
