"""Turns the base logits of a draft block into draft tokens, one after another.

Each position's logits get a bias that depends on the token before it. Knows nothing of the stages.
Source: `spec/model.md` 10.1; `spec/model-decisions.md` D51.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.products import matmul


class MarkovWeights(NamedTuple):
    """embed, head [vocab, rank]; confidence [1, hidden + rank]."""

    embed: Tensor
    head: Tensor
    confidence: Tensor


Choose = Callable[[Tensor, int], Tensor]
"""From logits [requests, vocab] and the place in the block to tokens [requests]."""

Draw = Callable[[Tensor], Choose]
"""From base logits [requests, block, vocab] to what chooses drafts one after another."""


class Drafts(NamedTuple):
    """tokens [requests, block] int64; confidence [requests, block] fp32 raw logits; logits
    [requests, block, vocab] fp32 with the bias, empty if they are not kept."""

    tokens: Tensor
    confidence: Tensor
    logits: Tensor


def markov_draft(
    base: Tensor,
    hidden: Tensor,
    newest: Tensor,
    weights: MarkovWeights,
    drawing: Draw | None = None,
    keep: bool = True,
) -> Drafts:
    """Drafts of a block, or of its first places, each after the one before it.

    Args:
        base: [requests, block, vocab] fp32, target head on the normalised last-stage hidden.
        hidden: [requests, block, d] the last-stage hidden *before* the norm.
        newest: [requests] int64, the newest sampled token.
        weights: Markov and confidence heads.
        drawing: draws drafts; None takes the likeliest id, the lowest of equal ones.
        keep: return the logits.
    """
    choose = None if drawing is None else drawing(base)
    previous = newest
    tokens: list[Tensor] = []
    confidence: list[Tensor] = []
    logits: list[Tensor] = []
    for i in range(base.shape[1]):
        embedded = weights.embed[previous].to(torch.float32)
        joined = torch.cat((hidden[:, i].to(torch.float32), embedded), dim=-1)
        confidence.append(matmul(joined, weights.confidence).squeeze(-1))
        logits.append(base[:, i] + matmul(embedded, weights.head))
        previous = logits[-1].argmax(-1) if choose is None else choose(logits[-1], i)
        tokens.append(previous)
    kept = torch.stack(logits, 1) if keep else base.new_empty(0)
    return Drafts(torch.stack(tokens, 1), torch.stack(confidence, 1), kept)
