"""Where a request ends within the tokens of one step. Knows nothing of drafts."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.ops.verify.reference import Verified
from deepinfer.step import FLAG_END, FLAG_LIMIT, FLAG_STOP_ID


def cut_at_end(verified: Verified, room: Tensor, end_id: Tensor, stop_ids: Tensor) -> Verified:
    """Drop what follows the first end token, stop id or the row's limit.

    Args:
        verified: of `verify` or `ratio`.
        room: [n] int64, tokens that the row may still generate, >= 1.
        end_id: [n] int64, -1 = ignored.
        stop_ids: [n, width] int64, -1 = none.

    Returns:
        The same with shorter `tokens`, `accepted` counting only drafts that are left, and the
        flags of what ended the row. A NaN or EMPTY flag stays only if nothing ended it before.
    """
    accepted, tokens, flags = verified
    there = tokens >= 0
    column = torch.arange(tokens.shape[1], device=tokens.device)
    end = there & (tokens == end_id.unsqueeze(1))
    stop = there & (tokens.unsqueeze(-1) == stop_ids.unsqueeze(1)).any(-1)
    limit = there & (column + 1 >= room.unsqueeze(1))
    reasons = end * FLAG_END + (stop & ~end) * FLAG_STOP_ID + limit * FLAG_LIMIT
    ended = (reasons > 0).to(torch.int64).cumsum(1)
    first = (reasons > 0) & (ended == 1)
    left = torch.where(ended - first.to(torch.int64) > 0, -1, tokens)
    any_end = ended[:, -1] > 0
    reason = (reasons * first).sum(1).to(flags.dtype)
    count = (left >= 0).sum(1)
    return Verified(
        torch.minimum(accepted, count), left, torch.where(any_end, reason, flags).to(flags.dtype)
    )
