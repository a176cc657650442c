"""Row state on the device: tokens, lengths, page tables and drafts of admitted requests.

Plans change it by diffs, which arrive in one upload a step; sampling extends it. Knows nothing of
why rows come and go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.device import upload
from deepinfer.step import Admit, StepPlan

Parts = dict[str, NDArray[np.int64]]
"""Arrays that go up to the device together, by name."""


@dataclass(frozen=True)
class RowLimits:
    """Sizes of the row table: rows (row 0 included), tokens and pages a row, drafts a step."""

    rows: int
    tokens: int
    pages: int
    drafts: int


class Rows:
    """Tensors over rows; row 0 is reserved, has always ended and is never read as data.

    They stay where they are for good: captured graphs read and write them.

    Attributes:
        tokens: [rows, tokens] int64, known tokens; entries behind `length` may hold drafts.
        length: [rows] int64, tokens known (prompt and generated).
        limit: [rows] int64, most tokens the row may know.
        slot: [rows] int64, state slot.
        decoder_start: [rows] int64.
        lower: [rows] int64, first position that a window may reach.
        cached: [rows] int64, tokens whose entries lie in shared pages.
        pages: [rows, pages] int64, page ids.
        drafts: [rows] int64, drafts at hand (behind `length` in `tokens`).
        cap: [rows] int64, most drafts verified a step.
        confidence: [rows, drafts] fp32, raw confidences of the drafts at hand.
        ended: [rows] bool, a flag was set: the row generates nothing more.
        decoding: [rows] int64, the decoding rows, ascending; 0 behind them.
        budget: [1] int64, drafts verified in the step over all rows.
        temperature: [drafts] fp64, what the confidence of each draft of a block is divided by.
    """

    def __init__(self, limits: RowLimits, device: torch.device):
        def column(fill: int = 0) -> Tensor:
            return torch.full((limits.rows,), fill, dtype=torch.int64, device=device)

        self.limits = limits
        self.device = device
        self.tokens = torch.zeros(
            limits.rows, limits.tokens + limits.drafts, dtype=torch.int64, device=device
        )
        self.length = column(1)
        self.limit = column(1)
        self.slot = column()
        self.decoder_start = column()
        self.lower = column()
        self.cached = column()
        self.pages = torch.zeros(limits.rows, limits.pages, dtype=torch.int64, device=device)
        self.drafts = column()
        self.cap = column()
        self.confidence = torch.zeros(limits.rows, limits.drafts, device=device)
        self.ended = torch.zeros(limits.rows, dtype=torch.bool, device=device)
        self.ended[0] = True
        self.decoding = column()
        self.budget = torch.zeros(1, dtype=torch.int64, device=device)
        self._budget = 0
        self.temperature = torch.ones(limits.drafts, dtype=torch.float64, device=device)

    def changes(self, plan: StepPlan, decoding: Collection[int]) -> Parts:
        """What `change` needs of a plan; nothing in a steady state.

        Args:
            plan: the step.
            decoding: the decoding rows, this plan's additions and removals included.
        """
        parts: Parts = {}
        if plan.release:
            parts["release"] = np.array(plan.release, np.int64)
        if plan.admit:
            parts["admit"] = np.array([_columns(admit) for admit in plan.admit], np.int64)
            parts["ids"] = np.concatenate([np.array(a.ids, np.int64) for a in plan.admit])
        if plan.pages:
            parts["pages"] = np.array(plan.pages, np.int64)
        if plan.draft_cap:
            parts["caps"] = np.array(plan.draft_cap, np.int64)
        if plan.decode_add or plan.decode_remove:
            parts["decoding"] = np.zeros(self.limits.rows, np.int64)
            parts["decoding"][: len(decoding)] = sorted(decoding)
        if plan.draft_budget != self._budget:
            self._budget = plan.draft_budget
            parts["budget"] = np.array([plan.draft_budget], np.int64)
        if plan.draft_temperature:
            parts["temperature"] = np.array(plan.draft_temperature, np.float64).view(np.int64)
        return parts

    def change(self, plan: StepPlan, sent: Mapping[str, Tensor]) -> None:
        """Carry out the changes of a plan; `sent` holds `changes` as `send` brought it up."""
        if plan.release:  # what is in flight for them generates nothing
            self.ended.index_fill_(0, sent["release"], True)
        if plan.admit:
            rows, length, limit, slot, decoder_start, lower, cached = sent["admit"].unbind(1)
            first = 0
            for admit in plan.admit:
                last = first + len(admit.ids)
                self.tokens[admit.row, : len(admit.ids)] = sent["ids"][first:last]
                first = last
            self.length[rows] = length
            self.limit[rows] = limit
            self.slot[rows] = slot
            self.decoder_start[rows] = decoder_start
            self.lower[rows] = lower
            self.cached[rows] = cached
            for table in (self.pages, self.drafts, self.cap, self.ended):
                table.index_fill_(0, rows, 0)  # a number assigned by index would be uploaded
        if plan.pages:
            row, place, page = sent["pages"].unbind(1)
            self.pages[row, place] = page
        if plan.draft_cap:
            row, cap = sent["caps"].unbind(1)
            self.cap[row] = cap
        if "decoding" in sent:
            self.decoding.copy_(sent["decoding"])
        if "budget" in sent:
            self.budget.copy_(sent["budget"])
        if "temperature" in sent:
            self.temperature.copy_(sent["temperature"].view(torch.float64))


def _columns(admit: Admit) -> tuple[int, ...]:
    """What an admission sets, in the order of `Rows.change`."""
    lower = 0 if admit.snapshot else admit.encoder_start
    length = len(admit.ids)
    return (
        *(admit.row, length, admit.limit, admit.slot),
        *(admit.decoder_start, lower, admit.cached),
    )


def send(parts: Parts, device: torch.device) -> dict[str, Tensor]:
    """Bring arrays up to the device in one copy, without waiting; none if there is nothing."""
    if not parts:
        return {}
    sent = upload(np.concatenate([part.ravel() for part in parts.values()]), device)
    pieces = sent.split([part.size for part in parts.values()])
    named = zip(parts.items(), pieces, strict=True)
    return {name: piece.view(part.shape) for (name, part), piece in named}
