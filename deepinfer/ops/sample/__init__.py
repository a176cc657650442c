"""Choosing tokens from logits; see reference.py for its meaning."""

from deepinfer.ops.registry import REFERENCE, Op, lazy
from deepinfer.ops.sample.draft import Candidates, Drawing, Drawn, candidates, draw_drafts
from deepinfer.ops.sample.logprobs import RowLogprobs, raw_logprobs, top_logprobs
from deepinfer.ops.sample.reference import Sampled
from deepinfer.ops.sample.reference import sample as _reference
from deepinfer.ops.sample.state import SamplerState, SamplerTable

sample = Op(_reference)
sample.add(
    lazy(
        sample,
        "triton",
        needs="triton",
        run="deepinfer.ops.sample.triton:sample",
        refuses="deepinfer.ops.sample.triton:refuses",
        pack="deepinfer.ops.sample.triton:pack",
        order_class=REFERENCE,
    )
)

__all__ = [
    "Candidates",
    "Drawing",
    "Drawn",
    "RowLogprobs",
    "Sampled",
    "SamplerState",
    "SamplerTable",
    "candidates",
    "draw_drafts",
    "raw_logprobs",
    "sample",
    "top_logprobs",
]
