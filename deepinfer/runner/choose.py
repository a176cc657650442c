"""From logits to generated tokens: draws, checks drafts, cuts at the end, extends the rows.

Knows nothing of forward passes and plans.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.device import find_device
from deepinfer.ops.conclude import Concluded, Group, RowTable, conclude, finish
from deepinfer.ops.conclude.reference import columns, drafted
from deepinfer.ops.sample import RowLogprobs, Sampled, SamplerState, sample
from deepinfer.runner.layout import StepLayout
from deepinfer.runner.masks import MaskTable
from deepinfer.runner.results import Chosen
from deepinfer.runner.rows import Rows
from deepinfer.runner.verification import Verification


class Chooser:
    """Generates tokens of rows; captured graphs may hold what it does.

    Args:
        rows: row state, which it extends.
        verification: judges drafts.
    """

    def __init__(self, rows: Rows, verification: Verification):
        arch = find_device(str(rows.device)).arch
        self._rows = rows
        self._sample, self._conclude = sample.bind(arch=arch), conclude.bind(arch=arch)
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
        table = RowTable(
            *(rows.tokens, rows.length, rows.limit, rows.drafts, rows.ended),
            *(state.end_id, state.stop_ids),
        )
        legal = None if masks is None else masks.legal
        group = Group(layout.groups, layout.verified, layout.first, legal)
        if by_law:
            done = self._by_law(table, group, drawn, state)
        else:
            done = self._conclude(table, group, drawn.tokens, drawn.flags, cap=rows.limits.drafts)
        return Chosen(done.packed, _grouped(drawn.logprobs, done.index))

    def _by_law(
        self, table: RowTable, group: Group, drawn: Sampled, state: SamplerState
    ) -> Concluded:
        """As `conclude`, for the rules that look at laws."""
        # By law even a draft that is not legal has its say: it is rejected for certain, and what
        # the drafts had too much is made up for.
        verified, over = group.judged(table.ended, more=1)
        cap = self._rows.limits.drafts
        index = columns(group, verified, cap)
        here = torch.arange(cap + 1, device=index.device) <= verified.unsqueeze(1)
        assert drawn.law is not None, "the sampler keeps laws for these rules"
        kept = self._verification.judge(
            drafted(table, group, verified, cap),
            torch.where(here, drawn.tokens[index], -1),
            torch.where(here, drawn.flags[index], 0),
            drawn.law[index],
            group.row,
            state.key(group.row, table.length[group.row]),
        )
        return Concluded(finish(table, group, verified, over, kept), index)


def _grouped(found: RowLogprobs | None, index: Tensor) -> RowLogprobs | None:
    """Log-probabilities in the shape of the generated tokens."""
    return None if found is None else RowLogprobs(*(column[index] for column in found))
