"""Attention of a draft block; see reference.py for its meaning."""

from deepinfer.ops.draft_attention.reference import draft_attention as _reference
from deepinfer.ops.registry import Op, lazy

draft_attention = Op(_reference)
draft_attention.add(
    lazy(
        draft_attention,
        "hopper",
        needs="triton",
        run="deepinfer.ops.draft_attention.hopper:draft_attention",
        refuses="deepinfer.ops.draft_attention.hopper:refuses",
        pack="deepinfer.ops.draft_attention.triton:pack",
        order_class="sm90",
    )
)
draft_attention.add(
    lazy(
        draft_attention,
        "triton",
        needs="triton",
        run="deepinfer.ops.draft_attention.triton:draft_attention",
        refuses="deepinfer.ops.draft_attention.triton:refuses",
        pack="deepinfer.ops.draft_attention.triton:pack",
        order_class="triton",
    )
)

__all__ = ["draft_attention"]
