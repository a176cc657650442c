"""Accepted lengths of the verification rules on made-up laws: the operations, without a network.

Knows nothing of time.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from deepinfer.ops.noise import NoiseKey, Purpose, gumbel_argmax
from deepinfer.ops.verify import Verified, block, ratio, verify

# Logits are normal; these spreads and disturbances give drafts of about 0.5, 0.75 and 0.9.
LAWS = ((6.0, 3.2), (6.0, 1.3), (6.0, 0.45))
_VOCAB, _CAP = 128, 5


class Lengths(NamedTuple):
    """Tokens a verified block gives on average, the one that always comes included.

    Attributes:
        overlap: mean of sum(min(p, q)), the chance that a draft drawn for itself is accepted.
        greedy: match with the likeliest draft each time.
        match: with drafts that share the noise of their position, as the engine draws them.
        ratio, block: by those rules.
    """

    overlap: float
    greedy: float
    match: float
    ratio: float
    block: float


def lengths(spread: float, disturbance: float, blocks: int = 4000, seed: int = 0) -> Lengths:
    """Measure all rules on the same laws.

    Args:
        spread: standard deviation of the target's logits.
        disturbance: of the difference of the drafter's from them.
        blocks: number of blocks, each with laws of its own.
        seed: of laws and noise.
    """
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(blocks, _CAP + 1, _VOCAB, generator=generator) * spread
    other = torch.randn(blocks, _CAP, _VOCAB, generator=generator) * disturbance
    draft = target[:, :_CAP] + other
    law, draft_law = (logits - logits.amax(-1, keepdim=True) for logits in (target, draft))
    zero = torch.zeros(blocks, dtype=torch.int64)
    key = NoiseKey(zero + seed, torch.arange(blocks) * (_CAP + 1), zero)

    def drawn(laws: torch.Tensor, purpose: Purpose) -> torch.Tensor:
        columns = [
            gumbel_argmax(laws[:, i], key._replace(position=key.position + i), purpose)
            for i in range(laws.shape[1])
        ]
        return torch.stack(columns, 1)

    chosen, flags = drawn(law, Purpose.TARGET), torch.zeros(blocks, _CAP + 1, dtype=torch.int32)
    alone, coupled = drawn(draft_law, Purpose.DRAFT), drawn(draft_law, Purpose.TARGET)
    p, q = (torch.softmax(x.double(), -1) for x in (law[:, :_CAP], draft_law))

    def mean(verified: Verified) -> float:
        return round(1 + float(verified.accepted.double().mean()), 4)

    return Lengths(
        overlap=round(float(torch.minimum(p, q).sum(-1).mean()), 4),
        greedy=mean(verify.reference(draft_law.argmax(-1), chosen, flags)),
        match=mean(verify.reference(coupled, chosen, flags)),
        ratio=mean(ratio(alone, chosen, flags, law, draft_law, key)),
        block=mean(block(alone, chosen, flags, law, draft_law, key)),
    )
