"""Markov drafting; see reference.py for its meaning."""

from deepinfer.ops.markov_draft.reference import Choose, Drafts, Draw, MarkovWeights
from deepinfer.ops.markov_draft.reference import markov_draft as _reference
from deepinfer.ops.registry import Op, lazy

markov_draft = Op(_reference)
markov_draft.add(
    lazy(
        markov_draft,
        "hopper",
        needs="triton",
        run="deepinfer.ops.markov_draft.hopper:markov_draft",
        refuses="deepinfer.ops.markov_draft.hopper:refuses",
        pack="deepinfer.ops.markov_draft.triton:pack",
        order_class="triton",
    )
)
markov_draft.add(
    lazy(
        markov_draft,
        "triton",
        needs="triton",
        run="deepinfer.ops.markov_draft.triton:markov_draft",
        refuses="deepinfer.ops.markov_draft.triton:refuses",
        pack="deepinfer.ops.markov_draft.triton:pack",
        order_class="triton",
    )
)

__all__ = ["Choose", "Drafts", "Draw", "MarkovWeights", "markov_draft"]
