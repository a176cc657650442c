"""The tokens of decoding rows; see reference.py for its meaning."""

from deepinfer.ops.decoding.reference import Decoding, RowState, share_drafts
from deepinfer.ops.decoding.reference import decoding as _reference
from deepinfer.ops.registry import REFERENCE, Op, lazy

decoding = Op(_reference)
decoding.add(
    lazy(
        decoding,
        "triton",
        needs="triton",
        run="deepinfer.ops.decoding.triton:decoding",
        refuses="deepinfer.ops.decoding.triton:refuses",
        pack="deepinfer.ops.decoding.triton:pack",
        order_class=REFERENCE,
    )
)

__all__ = ["Decoding", "RowState", "decoding", "share_drafts"]
