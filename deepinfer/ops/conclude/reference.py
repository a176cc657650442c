"""Ends a step: drafts that match stay, rows end at their stop ids and limits, tables grow.

Knows nothing of how tokens and drafts were drawn. Source: sampling.md 4; dspark-and-replay.md 4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.verify import Verified, cut_at_end
from deepinfer.ops.verify.reference import verify


class RowTable(NamedTuple):
    """What is known of all rows; changed in place.

    tokens [rows, n] int64, known ones and behind them drafts; length, limit, drafts [rows] int64
    and ended [rows] bool, as in `Rows`; end_id [rows] and stop_ids [rows, width] int64.
    """

    tokens: Tensor
    length: Tensor
    limit: Tensor
    drafts: Tensor
    ended: Tensor
    end_id: Tensor
    stop_ids: Tensor


class Group(NamedTuple):
    """The rows that generate: row, verified, first [groups] int64, as in `StepLayout`; legal
    [rows] int64 leading drafts that may be verified, -1 = none and no token, or None."""

    row: Tensor
    verified: Tensor
    first: Tensor
    legal: Tensor | None

    def judged(self, ended: Tensor, more: int = 0) -> tuple[Tensor, Tensor]:
        """Drafts that are looked at, with `more` than the legal ones; who generates nothing."""
        over = ended[self.row]
        if self.legal is None:
            return self.verified, over
        legal = self.legal[self.row]
        return torch.minimum(self.verified, legal.clamp(min=0) + more), over | (legal < 0)


class Concluded(NamedTuple):
    """packed [groups, 4 + cap] int32: verified, accepted, flags, generated tokens (-1 = none);
    index [groups, 1 + cap] int64: the sample of each token, 0 where there is none."""

    packed: Tensor
    index: Tensor


def conclude(
    table: RowTable, group: Group, chosen: Tensor, flags: Tensor, *, cap: int
) -> Concluded:
    """Verify drafts by match, cut the rows at their ends, and write what they generated.

    Args:
        table: of all rows.
        group: of the step.
        chosen: [samples] int64, `sample`'s tokens; those of a group lie side by side.
        flags: [samples] int32, `sample`'s flags.
        cap: most drafts a row.

    Writes:
        tokens, length, ended and drafts of the rows that generate.
    """
    verified, over = group.judged(table.ended)
    index = columns(group, verified, cap)
    here = torch.arange(cap + 1, device=chosen.device) <= verified.unsqueeze(1)
    kept = verify(
        drafted(table, group, verified, cap),
        torch.where(here, chosen[index], -1),
        torch.where(here, flags[index], 0),
    )
    return Concluded(finish(table, group, verified, over, kept), index)


def columns(group: Group, verified: Tensor, cap: int) -> Tensor:
    """[groups, 1 + cap] int64: the sample at each draft and behind the last; 0 where none is."""
    depth = torch.arange(cap + 1, device=verified.device)
    return torch.where(depth <= verified.unsqueeze(1), group.first.unsqueeze(1) + depth, 0)


def drafted(table: RowTable, group: Group, verified: Tensor, cap: int) -> Tensor:
    """[groups, cap] int64: the drafts that are looked at, -1 behind them."""
    depth = torch.arange(cap, device=verified.device)
    found = table.tokens[group.row.unsqueeze(1), table.length[group.row].unsqueeze(1) + depth]
    return torch.where(depth < verified.unsqueeze(1), found, -1)


def finish(table: RowTable, group: Group, verified: Tensor, over: Tensor, kept: Verified) -> Tensor:
    """Cut and write what was `kept` of each group; `Concluded.packed`. `over` rows stay as they
    are; entries without a token go to row 0."""
    row, length = group.row, table.length[group.row]
    kept = cut_at_end(kept, table.limit[row] - length, table.end_id[row], table.stop_ids[row])
    accepted, flags = kept.accepted.masked_fill(over, 0), kept.flags.masked_fill(over, 0)
    tokens = kept.tokens.masked_fill(over.unsqueeze(1), -1)
    depth, there = torch.arange(tokens.shape[1], device=tokens.device), tokens >= 0
    target = torch.where(there, row.unsqueeze(1), 0)
    column = torch.where(there, length.unsqueeze(1) + depth, 0)
    table.tokens[target, column] = tokens.clamp(min=0)
    table.length[row] = length + there.sum(1)
    table.ended[row] = table.ended[row] | (flags != 0)
    table.drafts.index_fill_(0, row, 0)
    parts = (verified.unsqueeze(1), accepted.unsqueeze(1), flags.unsqueeze(1), tokens)
    return torch.cat(parts, dim=1).to(torch.int32)
