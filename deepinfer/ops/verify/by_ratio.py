"""Ratio verification: keeps the target's distribution, accepts more, depends on the drafts.

A draft d is accepted iff u q(d) < p(d); at the first rejection the token is drawn from what p has
more than q. p and q are the laws that target and drafts are drawn from. Knows nothing of schedules.
Source: sampling.md 4; dspark-and-replay.md 4; D63 (no shrinking of the residual).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from deepinfer.errors import ConfigError
from deepinfer.ops.noise import NoiseKey, Purpose, gumbel_argmax, words
from deepinfer.ops.sample.elementary import log, probabilities
from deepinfer.ops.verify.reference import Verified, keep_prefix

MOST_RATIO_BYTES = 2 << 30
_LAW_BYTES = 4


def ratio_bytes(rows: int, cap: int, vocab: int) -> int:
    """Bytes of the draft laws [rows, cap, vocab] fp32 that ratio verification has to store."""
    return rows * cap * vocab * _LAW_BYTES


def allocate_draft_laws(
    rows: int,
    cap: int,
    vocab: int,
    device: torch.device | str = "cpu",
    most_bytes: int = MOST_RATIO_BYTES,
) -> Tensor:
    """The store of draft laws; rows of it may hold anything at first.

    Raises:
        ConfigError: it would be larger than `most_bytes`.
    """
    size = ratio_bytes(rows, cap, vocab)
    if size > most_bytes:
        raise ConfigError(
            f"ratio verification of {rows} rows with {cap} drafts over {vocab} ids stores {size} "
            f"bytes, more than {most_bytes}: lower the number of rows, or use 'match'"
        )
    return torch.empty((rows, cap, vocab), dtype=torch.float32, device=device)


def ratio(
    drafts: Tensor,
    chosen: Tensor,
    flags: Tensor,
    law: Tensor,
    draft_law: Tensor,
    key: NoiseKey,
) -> Verified:
    """Accept drafts by the ratio of probabilities.

    u = (x | 1) / 2^32 with x the word of id 0 for purpose ACCEPT at the draft's position. p and q
    are quotients of integer masses in float64; u q < p is float64 arithmetic. Both are IEEE, so
    that the decision is the same on every device.

    Args:
        drafts: [n, cap] int64, drawn with purpose DRAFT from `draft_law`; -1 = none (only behind
            the others).
        chosen: [n, 1 + cap] int64, `sample`'s tokens; used where no draft is rejected.
        flags: [n, 1 + cap] int32, `sample`'s flags. A draft at a flagged column is not accepted.
        law: [n, 1 + cap, vocab] fp32, `Sampled.law` of the columns.
        draft_law: [n, cap, vocab] fp32, `Drawn.law` of the drafts; anything where there is none.
        key: of column 0; [n] each.

    Returns:
        As `verify`.
    """
    there = drafts >= 0
    cap = drafts.shape[1]
    if not cap:
        return keep_prefix(there, chosen, flags)
    p = probabilities(law[:, :cap])
    q = probabilities(torch.where(there.unsqueeze(-1), draft_law, 0.0))
    index = drafts.clamp(min=0).unsqueeze(-1)
    u = torch.stack([uniform(later(key, i)) for i in range(cap)], dim=1)
    passed = u * q.gather(2, index).squeeze(-1) < p.gather(2, index).squeeze(-1)
    right = there & (chosen[:, :-1] >= 0) & passed
    rejected = there & (chosen[:, :-1] >= 0) & ~passed
    # Accepted columns hold their draft, the first rejected one its replacement, behind which
    # nothing is kept, others `sample`'s token.
    at = first_wrong(right)
    p_there, q_there = law_at(p, at), law_at(q, at)
    instead = residual_draw(p_there, q_there, p_there, later(key, at)).unsqueeze(1)
    result = torch.where(right, drafts, torch.where(rejected, instead, chosen[:, :-1]))
    return keep_prefix(right, torch.cat((result, chosen[:, -1:]), dim=1), flags)


def first_wrong(right: Tensor) -> Tensor:
    """[n] int64, the first column of `right` [n, cap] bool that is not; the last one if all are."""
    return right.to(torch.int64).cumprod(1).sum(1).clamp(max=right.shape[1] - 1)


def law_at(laws: Tensor, column: Tensor) -> Tensor:
    """[n, vocab], one column [n] of laws [n, cap, vocab]."""
    return laws[torch.arange(len(laws), device=laws.device), column]


def residual(p: Tensor, q: Tensor, otherwise: Tensor) -> Tensor:
    """What p has more than q, not normalised; `otherwise` where that is nothing.

    All are float64 [*, vocab].
    """
    more = (p - q).clamp(min=0.0)
    return torch.where((more > 0).any(-1, keepdim=True), more, otherwise)


def residual_draw(p: Tensor, q: Tensor, otherwise: Tensor, key: NoiseKey) -> Tensor:
    """A token of the law of `residual`, [n] int64, by noise of purpose RESIDUAL."""
    rest = residual(p, q, otherwise)
    scaled = log(rest / rest.amax(-1, keepdim=True))
    return gumbel_argmax(scaled.to(torch.float32), key, Purpose.RESIDUAL)


def uniform(key: NoiseKey) -> Tensor:
    """[n] float64 in (0, 1), of purpose ACCEPT."""
    return (words(key, Purpose.ACCEPT, vocab=1).squeeze(1) | 1).to(torch.float64) * math.ldexp(
        1.0, -32
    )


def later(key: NoiseKey, columns: int | Tensor) -> NoiseKey:
    """The key so many columns later."""
    return key._replace(position=key.position + columns)
