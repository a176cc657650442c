"""Draws drafts from a drafter's logits. Knows nothing of the rules of a request."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.noise import Purpose, gumbel_noise_at
from deepinfer.ops.sample.law import certain, scale
from deepinfer.ops.sample.state import SamplerState

CANDIDATES = 64
"""Likeliest ids that a draft is drawn from. A draft is a guess: any law will do, and a small one
needs little noise."""


class Drawn(NamedTuple):
    """tokens [n] int64; law [n, vocab] fp32, the distribution drawn from, as in `Sampled`, None
    unless kept."""

    tokens: Tensor
    law: Tensor | None


def draw_drafts(
    logits: Tensor,
    state: SamplerState,
    rows: Tensor,
    positions: Tensor,
    purpose: Purpose,
    keep_law: bool = False,
) -> Drawn:
    """One draft a row at the row's temperature; greedy rows take the likeliest id.

    Args:
        logits: [n, vocab] fp32; a row that is not finite counts as all 0, its draft is rejected
            or right by chance.
        state: sampling values of all rows.
        rows: [n] int64, row of each draft.
        positions: [n] int64, index of the drafted token in its row.
        purpose: TARGET for match verification (the noise of the position itself, so that more
            drafts match), DRAFT for ratio and block (sharing noise would bias the result).
        keep_law: return the distribution too.
    """
    logits = logits.masked_fill(~logits.isfinite().all(1, keepdim=True), 0.0)
    best, likeliest = logits.max(1).values, logits.argmax(1)
    greedy, temperature = state.greedy[rows], state.temperature[rows]
    tokens, law = likeliest, None
    if state.uses.noise:
        value, ids = logits.topk(min(CANDIDATES, logits.shape[1]), dim=1)
        scaled = scale(value, best, temperature)
        noise = gumbel_noise_at(state.key(rows, positions), purpose, ids)
        drawn = ids.gather(1, (scaled + noise).argmax(1, keepdim=True)).squeeze(1)
        tokens = torch.where(greedy, likeliest, drawn)
        if keep_law:
            law = torch.full_like(logits, -math.inf).scatter_(1, ids, scaled)
            law = torch.where(greedy.unsqueeze(1), certain(likeliest, law), law)
    elif keep_law:
        law = certain(likeliest, logits)
    return Drawn(tokens, law)
