"""Draws drafts from a drafter's logits. Knows nothing of the rules of a request, nor of stages."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.markov_draft.reference import Choose
from deepinfer.ops.noise import Purpose, gumbel_noise_at
from deepinfer.ops.sample.law import certain, scale
from deepinfer.ops.sample.state import SamplerState

CANDIDATES = 64
"""Likeliest ids that a draft is drawn from. A draft is a guess: any law will do, and a small one
needs little noise."""


class Candidates(NamedTuple):
    """Ids that drafts are drawn from, [n, k] int64, and their noise [n, k] fp32."""

    ids: Tensor
    noise: Tensor


class Drawn(NamedTuple):
    """tokens [n] int64; law [n, vocab] fp32, the distribution drawn from, as in `Sampled`, None
    unless kept."""

    tokens: Tensor
    law: Tensor | None


def candidates(
    logits: Tensor, state: SamplerState, rows: Tensor, positions: Tensor, purpose: Purpose
) -> Candidates:
    """What drafts are drawn from, for many places at once: noise is many small operations.

    Args:
        logits: [n, vocab] fp32, about those that the drafts will be drawn by.
        state: sampling values of all rows.
        rows: [n] int64, row of each draft.
        positions: [n] int64, index of the drafted token in its row.
        purpose: TARGET for match verification (the noise of the position itself, so that more
            drafts match), DRAFT for ratio and block (sharing noise would bias the result).
    """
    ids = logits.topk(min(CANDIDATES, logits.shape[1]), dim=1).indices
    return Candidates(ids, gumbel_noise_at(state.key(rows, positions), purpose, ids))


def draw_drafts(
    logits: Tensor,
    state: SamplerState,
    rows: Tensor,
    among: Candidates | None,
    keep_law: bool = False,
) -> Drawn:
    """One draft a row at the row's temperature; greedy rows take the likeliest id of all.

    Args:
        logits: [n, vocab] fp32; a row that is not finite counts as all 0, its draft is rejected
            or right by chance.
        state: sampling values of all rows.
        rows: [n] int64, row of each draft.
        among: of the rows; None if `state.uses.noise` is not.
        keep_law: return the distribution too.
    """
    logits = logits.masked_fill(~logits.isfinite().all(1, keepdim=True), 0.0)
    likeliest = logits.argmax(1)
    if among is None:
        return Drawn(likeliest, certain(likeliest, logits) if keep_law else None)
    greedy, value = state.greedy[rows], logits.gather(1, among.ids)
    scaled = scale(value, value.max(1).values, state.temperature[rows])
    best = (scaled + among.noise).argmax(1, keepdim=True)
    tokens = torch.where(greedy, likeliest, among.ids.gather(1, best).squeeze(1))
    if not keep_law:
        return Drawn(tokens, None)
    law = torch.full_like(logits, -math.inf).scatter_(1, among.ids, scaled)
    return Drawn(tokens, torch.where(greedy.unsqueeze(1), certain(likeliest, law), law))


class Drawing(NamedTuple):
    """Draws the drafts of a block; keeps their laws where somebody wants them.

    Attributes:
        state: sampling values of all rows.
        rows: [groups] int64.
        length: [groups] int64, tokens known: the position of the first draft.
        purpose: of the noise.
        laws: [rows, cap, vocab] fp32 that takes the laws, or None.
    """

    state: SamplerState
    rows: Tensor
    length: Tensor
    purpose: Purpose
    laws: Tensor | None

    def __call__(self, base: Tensor) -> Choose:
        """What chooses drafts [groups] int64 place by place; see `markov_draft`.

        Args:
            base: [groups, block, vocab] fp32.
        """
        groups, block = base.shape[:2]
        among: list[Candidates | None] = [None] * block
        if self.state.uses.noise:
            place = torch.arange(block, device=base.device)
            positions = (self.length.unsqueeze(1) + place).flatten()
            rows = self.rows.unsqueeze(1).expand(-1, block).flatten()
            found = candidates(base.flatten(0, 1), self.state, rows, positions, self.purpose)
            parts = [part.unflatten(0, (groups, block)).unbind(1) for part in found]
            among = [Candidates(*part) for part in zip(*parts, strict=True)]

        def choose(logits: Tensor, place: int) -> Tensor:
            keep = self.laws is not None and place < self.laws.shape[1]
            drawn = draw_drafts(logits, self.state, self.rows, among[place], keep)
            if self.laws is not None and drawn.law is not None:
                self.laws[self.rows, place] = drawn.law
            return drawn.tokens

        return choose
