"""Block verification: keeps the target's distribution and accepts at least as much as ratio.

All drafts of a block are judged together: one that is unlikely alone may be kept because those
before it are likelier in the target than in the draft law. Knows nothing of schedules.
Source: dspark-and-replay.md 4; Sun et al., "Block verification accelerates speculative decoding"
(arXiv 2403.10444).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.noise import NoiseKey
from deepinfer.ops.sample.elementary import probabilities
from deepinfer.ops.verify.by_ratio import later, law_at, residual_draw, uniform
from deepinfer.ops.verify.reference import Verified, keep_prefix

_UNIT = math.ldexp(1.0, 44)  # masses are summed as integers, whose order does not matter


class Judged(NamedTuple):
    """What decides about a block of drafts.

    weight [n, 1 + cap] float64: P_k, how much likelier the target makes the first k drafts, at most
    1 (P_0 = 1); surplus, rest [n, cap] float64: draft k is kept, if none behind it is, iff
    u (surplus + rest) <= surplus.
    """

    weight: Tensor
    surplus: Tensor
    rest: Tensor


def judge(p: Tensor, q: Tensor, drafts: Tensor) -> Judged:
    """Thresholds of a block.

    Args:
        p: [n, cap, vocab] float64, the target's law at each draft.
        q: [n, cap, vocab] float64, the law that each draft was drawn from.
        drafts: [n, cap] int64; -1 = none (only behind the others).
    """
    there = drafts >= 0
    index = drafts.clamp(min=0).unsqueeze(-1)
    chance, proposed = (law.gather(2, index).squeeze(-1) for law in (p, q))
    gain = torch.where(there & (proposed > 0), chance / proposed, 0.0)
    weights = [torch.ones_like(gain[:, 0])]
    for k in range(drafts.shape[1]):
        weights.append((weights[-1] * gain[:, k]).clamp(max=1.0))
    weight = torch.stack(weights, dim=1)
    # What the target has more than the drafts at the next position, if there is a draft.
    more = (weight[:, 1:-1].unsqueeze(-1) * p[:, 1:] - q[:, 1:]).clamp(min=0.0)
    total = (more * _UNIT).round().to(torch.int64).sum(-1).to(torch.float64) / _UNIT
    last = torch.cat((~there[:, 1:], torch.ones_like(there[:, :1])), dim=1)
    surplus = torch.where(last, weight[:, 1:], torch.nn.functional.pad(total, (0, 1)))
    return Judged(weight, torch.where(there, surplus, 0.0), 1 - weight[:, 1:])


def block(
    drafts: Tensor,
    chosen: Tensor,
    flags: Tensor,
    law: Tensor,
    draft_law: Tensor,
    key: NoiseKey,
) -> Verified:
    """Accept the longest prefix of drafts that the block as a whole supports.

    Arguments, noise and result are those of `ratio`. Every number behind the laws is IEEE float64
    or an integer, so that the decision is the same on every device.
    """
    cap = drafts.shape[1]
    if not cap:
        return keep_prefix(drafts >= 0, chosen, flags)
    # A position without a token has no law: the block ends before it.
    there = ((drafts >= 0) & (chosen[:, :-1] >= 0)).to(torch.int64).cumprod(1) > 0
    drafts = torch.where(there, drafts, -1)
    p = probabilities(torch.where(there.unsqueeze(-1), law[:, :cap], 0.0))
    q = probabilities(torch.where(there.unsqueeze(-1), draft_law, 0.0))
    judged = judge(p, q, drafts)
    u = torch.stack([uniform(later(key, i)) for i in range(cap)], dim=1)
    kept = there & (u * (judged.surplus + judged.rest) <= judged.surplus)
    place = torch.arange(1, cap + 1, device=drafts.device)
    accepted = (kept * place).amax(1)
    right = place <= accepted.unsqueeze(1)
    at = accepted.clamp(max=cap - 1)
    more = judged.weight.gather(1, at.unsqueeze(1)) * law_at(p, at)
    instead = residual_draw(more, law_at(q, at), law_at(p, at), later(key, at)).unsqueeze(1)
    rejected = there & (place == accepted.unsqueeze(1) + 1)
    tokens = torch.where(rejected, instead, chosen[:, :-1])
    tokens = torch.where(right, drafts, tokens)
    return keep_prefix(right, torch.cat((tokens, chosen[:, -1:]), dim=1), flags)
