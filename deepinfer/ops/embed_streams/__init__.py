"""The flow before the first block; see reference.py for its meaning."""

from deepinfer.ops.embed_streams.reference import Embedded
from deepinfer.ops.embed_streams.reference import embed_streams as _reference
from deepinfer.ops.registry import REFERENCE, Op, lazy

embed_streams = Op(_reference)
embed_streams.add(
    lazy(
        embed_streams,
        "triton",
        needs="triton",
        run="deepinfer.ops.embed_streams.triton:embed_streams",
        refuses="deepinfer.ops.embed_streams.triton:refuses",
        pack="deepinfer.ops.embed_streams.triton:pack",
        order_class=REFERENCE,
    )
)

__all__ = ["Embedded", "embed_streams"]
