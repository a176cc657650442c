"""Drafts into the row table; see reference.py for its meaning."""

from deepinfer.ops.draft_store.reference import DraftRows, pack_drafts
from deepinfer.ops.draft_store.reference import draft_store as _reference
from deepinfer.ops.registry import REFERENCE, Op, lazy

draft_store = Op(_reference)
draft_store.add(
    lazy(
        draft_store,
        "triton",
        needs="triton",
        run="deepinfer.ops.draft_store.triton:draft_store",
        refuses="deepinfer.ops.draft_store.triton:refuses",
        pack="deepinfer.ops.draft_store.triton:pack",
        order_class=REFERENCE,
    )
)

__all__ = ["DraftRows", "draft_store", "pack_drafts"]
