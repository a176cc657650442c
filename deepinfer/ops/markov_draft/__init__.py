"""Markov drafting; see reference.py for its meaning."""

from deepinfer.ops.markov_draft.reference import Choose, Drafts, MarkovWeights
from deepinfer.ops.markov_draft.reference import markov_draft as _reference
from deepinfer.ops.registry import Op

markov_draft = Op(_reference)

__all__ = ["Choose", "Drafts", "MarkovWeights", "markov_draft"]
