"""Choosing tokens from logits; see reference.py for its meaning."""

from deepinfer.ops.registry import Op
from deepinfer.ops.sample.draft import Drawn, draw_drafts
from deepinfer.ops.sample.logprobs import RowLogprobs, raw_logprobs, top_logprobs
from deepinfer.ops.sample.reference import Sampled
from deepinfer.ops.sample.reference import sample as _reference
from deepinfer.ops.sample.state import SamplerState, SamplerTable

sample = Op(_reference)

__all__ = [
    "Drawn",
    "RowLogprobs",
    "Sampled",
    "SamplerState",
    "SamplerTable",
    "draw_drafts",
    "raw_logprobs",
    "sample",
    "top_logprobs",
]
