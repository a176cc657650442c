"""The compressor; see reference.py for its meaning."""

from deepinfer.ops.compress import cpu_f32
from deepinfer.ops.compress.reference import CompressorWeights
from deepinfer.ops.compress.reference import compress as _reference
from deepinfer.ops.cpu_tiles import serves
from deepinfer.ops.registry import Implementation, Op, lazy

compress = Op(_reference)
compress.add(
    Implementation(
        "cpu_f32",
        cpu_f32.compress,
        refuses=serves,
        pack=cpu_f32.pack,
        batch_invariant=True,
        order_class="cpu_f32",
    )
)
compress.add(
    lazy(
        compress,
        "triton",
        needs="triton",
        run="deepinfer.ops.compress.triton:compress",
        refuses="deepinfer.ops.compress.triton:refuses",
        pack="deepinfer.ops.compress.triton:pack",
        order_class="triton",
    )
)

__all__ = ["CompressorWeights", "compress"]
