"""Which tokens decoding rows compute: the newest one of each and the drafts that it verifies.

Knows nothing of plans and networks.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class RowState(Protocol):
    """State of all rows, as `Rows` holds it."""

    tokens: Tensor
    length: Tensor
    limit: Tensor
    lower: Tensor
    cached: Tensor
    drafts: Tensor
    cap: Tensor
    ended: Tensor
    confidence: Tensor
    temperature: Tensor
    budget: Tensor


class Decoding(NamedTuple):
    """Tokens grouped by row, all int64; padding behind them is a token of row 0.

    verified, first [n]: drafts that each row verifies, its first token. rows, positions, starts,
    ends, lower, cached [tokens]: as in `Batch`; depth [tokens]: drafts before the token; history
    [tokens, ngram]: ids at and before each position, newest first, -1 before the start.
    """

    verified: Tensor
    first: Tensor
    rows: Tensor
    positions: Tensor
    starts: Tensor
    ends: Tensor
    lower: Tensor
    cached: Tensor
    depth: Tensor
    history: Tensor


def decoding(table: RowState, rows: Tensor, *, places: int, ngram: int) -> Decoding:
    """Share the step's drafts out and lay the tokens of the rows out.

    Args:
        table: of all rows.
        rows: [n] int64 table rows that decode, ascending; 0 behind them is padding.
        places: tokens for drafts, at least the step's budget; those without a draft are padding.
        ngram: ids a token of the history.
    """
    count, device = len(rows), rows.device
    total = count + places if count else 0
    verified = share_drafts(rows, table)
    sizes = verified + 1
    ends = sizes.cumsum(0)
    place = torch.arange(total, device=device)
    group = torch.searchsorted(ends, place, right=True)
    padding = group >= count
    group = group.clamp(max=max(count - 1, 0))
    row = torch.where(padding, 0, rows[group])
    depth = torch.where(padding, 0, place - (ends - sizes)[group])
    start = torch.where(padding, 0, table.length[row] - 1)
    end = torch.where(padding, 1, start + sizes[group])
    return Decoding(
        *(verified, ends - sizes, row, start + depth, start, end),
        *(table.lower[row], table.cached[row], depth),
        history(table.tokens, row, start + depth, ngram),
    )


def history(tokens: Tensor, rows: Tensor, positions: Tensor, ngram: int) -> Tensor:
    """[tokens, ngram] ids at and before each position, -1 before the start."""
    back = positions.unsqueeze(1) - torch.arange(ngram, device=rows.device)
    ids = tokens[rows.unsqueeze(1), back.clamp(min=0)]
    return torch.where(back >= 0, ids, -1)


def share_drafts(rows: Tensor, table: RowState) -> Tensor:
    """Drafts each decoding row verifies, [rows] int64.

    The step's budget goes to the drafts that are most likely accepted, by the newest confidences.
    Those of a row are a prefix of its block, as a draft is never likelier than the one before it;
    equal ones go to the lower row first. Each row takes no more than its cap, the drafts at hand
    and its limit (one token is always generated besides) allow.

    Args:
        rows: [n] int64, ascending; 0 (padding) takes none.
        table: row state.
    """
    room = (table.limit[rows] - table.length[rows] - 1).clamp(min=0)
    wanted = torch.minimum(torch.minimum(table.cap[rows], table.drafts[rows]), room)
    wanted = wanted.masked_fill(table.ended[rows], 0)
    worth = survival(table.confidence[rows], table.temperature)
    possible = torch.arange(worth.shape[1], device=worth.device) < wanted.unsqueeze(1)
    order = worth.masked_fill(~possible, -1).flatten().argsort(descending=True, stable=True)
    place = torch.arange(len(order), device=worth.device)
    rank = torch.empty_like(order).scatter_(0, order, place).view_as(worth)
    return ((rank < table.budget) & possible).sum(1)


def survival(confidence: Tensor, temperature: Tensor) -> Tensor:
    """Probability that each draft is accepted, those before it included, [rows, drafts] fp64.

    Args:
        confidence: [rows, drafts] fp32 logits; 0 or not a number = unknown, counts as certain, so
            that drafts without any confidence are shared out in the order of the rows.
        temperature: [drafts] fp64.
    """
    right = torch.sigmoid(confidence / temperature)
    unknown = (confidence == 0) | confidence.isnan()
    return right.masked_fill(unknown, 1).cumprod(1)
