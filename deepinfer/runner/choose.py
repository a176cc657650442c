"""From logits to generated tokens: draws, checks drafts, cuts at the end, extends the rows.

Knows nothing of forward passes and plans.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.device import find_device
from deepinfer.ops.sample import RowLogprobs, SamplerState, sample
from deepinfer.ops.verify import Verified, cut_at_end
from deepinfer.runner.layout import StepLayout
from deepinfer.runner.masks import MaskTable
from deepinfer.runner.results import Chosen, pack
from deepinfer.runner.rows import Rows
from deepinfer.runner.verification import Verification


class Chooser:
    """Generates tokens of rows; captured graphs may hold what it does.

    Args:
        rows: row state, which it extends.
        verification: judges drafts.
    """

    def __init__(self, rows: Rows, verification: Verification):
        self._rows = rows
        self._sample = sample.bind(arch=find_device(str(rows.device)).arch)
        self._verification = verification

    def choose(
        self, logits: Tensor, layout: StepLayout, state: SamplerState, masks: MaskTable | None
    ) -> Chosen:
        """Generate tokens for every group of a step.

        Args:
            logits: [samples, vocab] fp32, in the order of `StepLayout.emit`.
            layout: of the step.
            state: sampling values of all rows.
            masks: of the step; None if no row has any.
        """
        rows = self._rows
        positions = rows.length[layout.sample_row] + layout.depth
        known = rows.tokens[:, : layout.batch.max_len + rows.limits.drafts]  # penalties read it all
        words = None if masks is None else masks.of(layout.sample_row, layout.depth)
        by_law = self._verification.laws is not None
        drawn = self._sample(logits, state, layout.sample_row, positions, known, words, by_law)
        groups, length = layout.groups, rows.length[layout.groups]
        verified, over = layout.verified, rows.ended[groups]
        if masks is not None:
            legal = masks.legal[groups]
            # By law even a draft that is not legal has its say: it is rejected for certain, and
            # what the drafts had too much is made up for.
            most = legal.clamp(min=0) + int(by_law)
            verified, over = torch.minimum(verified, most), over | (legal < 0)
        depth = torch.arange(rows.limits.drafts + 1, device=rows.device)
        here = depth <= verified.unsqueeze(1)
        index = torch.where(here, layout.first.unsqueeze(1) + depth, 0)
        chosen = torch.where(here, drawn.tokens[index], -1)
        flags = torch.where(here, drawn.flags[index], 0)
        drafted = rows.tokens[groups.unsqueeze(1), length.unsqueeze(1) + depth[:-1]]
        drafted = torch.where(depth[:-1] < verified.unsqueeze(1), drafted, -1)
        room = rows.limit[groups] - length
        law = None if drawn.law is None else drawn.law[index]
        kept = self._verification.judge(
            drafted, chosen, flags, law, groups, state.key(groups, length)
        )
        kept = cut_at_end(kept, room, state.end_id[groups], state.stop_ids[groups])
        kept = Verified(
            kept.accepted.masked_fill(over, 0),
            kept.tokens.masked_fill(over.unsqueeze(1), -1),
            kept.flags.masked_fill(over, 0),
        )
        self._extend(groups, length, kept)
        packed = pack(verified, kept.accepted, kept.flags, kept.tokens)
        return Chosen(packed, _grouped(drawn.logprobs, index))

    def _extend(self, groups: Tensor, length: Tensor, kept: Verified) -> None:
        """Append generated tokens to their rows; entries without a token go to row 0."""
        rows, tokens = self._rows, kept.tokens
        depth = torch.arange(tokens.shape[1], device=rows.device)
        there = tokens >= 0
        target = torch.where(there, groups.unsqueeze(1), 0)
        column = torch.where(there, length.unsqueeze(1) + depth, 0)
        rows.tokens[target, column] = tokens.clamp(min=0)
        rows.length[groups] = length + there.sum(1)
        rows.ended[groups] = rows.ended[groups] | (kept.flags != 0)
        rows.drafts.index_fill_(0, groups, 0)


def _grouped(found: RowLogprobs | None, index: Tensor) -> RowLogprobs | None:
    """Log-probabilities in the shape of the generated tokens."""
    return None if found is None else RowLogprobs(*(column[index] for column in found))
