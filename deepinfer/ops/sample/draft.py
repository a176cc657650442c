"""Draws drafts from a drafter's logits. Knows nothing of the rules of a request."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.noise import Purpose, gumbel_argmax
from deepinfer.ops.sample.law import certain, scale
from deepinfer.ops.sample.state import SamplerState


class Drawn(NamedTuple):
    """tokens [n] int64; law [n, vocab] fp32, the distribution drawn from, as in `Sampled`."""

    tokens: Tensor
    law: Tensor


def draw_drafts(
    logits: Tensor, state: SamplerState, rows: Tensor, positions: Tensor, purpose: Purpose
) -> Drawn:
    """One draft a row at the row's temperature; greedy rows take the likeliest id.

    Args:
        logits: [n, vocab] fp32; a row that is not finite counts as all 0, its draft is rejected
            or right by chance.
        state: sampling values of all rows.
        rows: [n] int64, row of each draft.
        positions: [n] int64, index of the drafted token in its row.
        purpose: TARGET for match verification (the noise of the position itself, so that more
            drafts match), DRAFT for ratio verification (sharing noise would bias the result).
    """
    logits = logits.masked_fill(~logits.isfinite().all(1, keepdim=True), 0.0)
    best, likeliest = logits.max(1).values, logits.argmax(1)
    law = scale(logits, best, state.temperature[rows])
    law = torch.where(state.greedy[rows].unsqueeze(1), certain(likeliest, law), law)
    if not state.uses.noise:
        return Drawn(likeliest, law)
    return Drawn(gumbel_argmax(law, state.key(rows, positions), purpose), law)
