"""What draft blocks start from; see reference.py for its meaning."""

from deepinfer.ops.draft_start.reference import DraftStart, blocks
from deepinfer.ops.draft_start.reference import draft_start as _reference
from deepinfer.ops.registry import REFERENCE, Op, lazy

draft_start = Op(_reference)
draft_start.add(
    lazy(
        draft_start,
        "triton",
        needs="triton",
        run="deepinfer.ops.draft_start.triton:draft_start",
        refuses="deepinfer.ops.draft_start.triton:refuses",
        pack="deepinfer.ops.draft_start.triton:pack",
        order_class=REFERENCE,
    )
)

__all__ = ["DraftStart", "blocks", "draft_start"]
