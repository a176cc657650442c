"""Row state on the device: tokens, lengths, page tables and drafts of admitted requests.

Plans change it by diffs; sampling extends it. Knows nothing of why rows come and go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.step import Admit, DraftCap, PageAppend


@dataclass(frozen=True)
class RowLimits:
    """Sizes of the row table: rows (row 0 included), tokens and pages a row, drafts a step."""

    rows: int
    tokens: int
    pages: int
    drafts: int


class Rows:
    """Tensors over rows; row 0 is reserved and never read as data.

    Attributes:
        tokens: [rows, tokens] int64, known tokens; entries behind `length` may hold drafts.
        length: [rows] int64, tokens known (prompt and generated).
        prompt: [rows] int64, tokens of the prompt.
        limit: [rows] int64, most tokens the row may know.
        slot: [rows] int64, state slot.
        decoder_start: [rows] int64.
        pages: [rows, pages] int64, page ids.
        drafts: [rows] int64, drafts at hand (behind `length` in `tokens`).
        cap: [rows] int64, most drafts verified a step.
        confidence: [rows, drafts] fp32, raw confidences of the drafts at hand.
        ended: [rows] bool, a flag was set: the row generates nothing more.
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
        self.prompt = column(1)
        self.limit = column(1)
        self.slot = column()
        self.decoder_start = column()
        self.pages = torch.zeros(limits.rows, limits.pages, dtype=torch.int64, device=device)
        self.drafts = column()
        self.cap = column()
        self.confidence = torch.zeros(limits.rows, limits.drafts, device=device)
        self.ended = torch.zeros(limits.rows, dtype=torch.bool, device=device)

    def admit(self, items: Sequence[Admit]) -> None:
        """Fill rows anew."""
        if not items:
            return
        width = max(len(item.ids) for item in items)
        rows = self._ints([item.row for item in items])
        padded = [[*item.ids, *[0] * (width - len(item.ids))] for item in items]
        self.tokens[rows, :width] = self._ints(padded)
        self.length[rows] = self._ints([len(item.ids) for item in items])
        self.prompt[rows] = self._ints([item.prompt_len for item in items])
        self.limit[rows] = self._ints([item.limit for item in items])
        self.slot[rows] = self._ints([item.slot for item in items])
        self.decoder_start[rows] = self._ints([item.decoder_start for item in items])
        self.pages[rows] = 0
        self.drafts[rows] = 0
        self.cap[rows] = 0
        self.ended[rows] = False

    def append_pages(self, items: Sequence[PageAppend]) -> None:
        """Enter pages into the tables."""
        if items:
            row, place, page = self._ints([list(item) for item in items]).unbind(1)
            self.pages[row, place] = page

    def set_caps(self, items: Sequence[DraftCap]) -> None:
        """Change how many drafts rows may verify a step."""
        if items:
            row, cap = self._ints([list(item) for item in items]).unbind(1)
            self.cap[row] = cap

    def release(self, rows: Sequence[int]) -> None:
        """Forget rows; what is still in flight for them generates nothing."""
        if rows:
            self.ended[self._ints(list(rows))] = True

    def _ints(self, values: Sequence[object]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64).to(self.device, non_blocking=True)


def share_drafts(rows: Tensor, table: Rows, budget: int) -> Tensor:
    """Drafts each decoding row verifies, [rows] int64.

    Rows in ascending order take what their cap, the drafts at hand, their limit (one token is
    always generated besides) and the rest of the budget allow.

    Args:
        rows: [n] int64, ascending.
        table: row state.
        budget: drafts over all rows.
    """
    room = (table.limit[rows] - table.length[rows] - 1).clamp(min=0)
    wanted = torch.minimum(torch.minimum(table.cap[rows], table.drafts[rows]), room)
    wanted = wanted.masked_fill(table.ended[rows], 0)
    before = wanted.cumsum(0) - wanted
    return torch.minimum(wanted, (budget - before).clamp(min=0))
