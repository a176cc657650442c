"""Match verification: a draft is right iff it is the token that would have been chosen anyway.

The result is the non-speculative one, path by path, whatever drafts there are. Knows nothing of
how drafts or tokens were chosen. Source: sampling.md 4; dspark-and-replay.md 4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Verified(NamedTuple):
    """accepted [n] int64, drafts that were right; tokens [n, 1 + cap] int64, what the request
    generates: accepted drafts, then one token more, then -1; flags [n] int32 of that last one."""

    accepted: Tensor
    tokens: Tensor
    flags: Tensor


def verify(drafts: Tensor, chosen: Tensor, flags: Tensor) -> Verified:
    """Accept the longest prefix of drafts that equals what was chosen at their positions.

    Args:
        drafts: [n, cap] int64, the drafts a request verifies; -1 = none (only behind the others).
        chosen: [n, 1 + cap] int64, `sample`'s tokens: column i is the position of draft i, its
            prefix holds the drafts before i; column d follows all d drafts. -1 = none.
        flags: [n, 1 + cap] int32, `sample`'s flags; only rejected columns may differ from what
            a run without drafts has, and they are not looked at.

    Returns:
        One entry a request. A flagged column has no token and ends the accepted prefix.
    """
    right = (drafts >= 0) & (drafts == chosen[:, :-1])
    return keep_prefix(right, chosen, flags)


def keep_prefix(right: Tensor, chosen: Tensor, flags: Tensor) -> Verified:
    """Cut `chosen` behind the first draft that is not `right` [n, cap] bool."""
    accepted = right.to(torch.int64).cumprod(1).sum(1)
    last = accepted.unsqueeze(1)
    column = torch.arange(chosen.shape[1], device=chosen.device)
    tokens = torch.where(column <= last, chosen, -1)
    return Verified(accepted, tokens, flags.gather(1, last).squeeze(1))
