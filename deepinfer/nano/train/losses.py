"""The language-model loss, with accuracies by kind of text. It does not know the network."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from deepinfer.nano.train.rows import SPOKEN, Rows


def next_token_loss(
    hidden: Tensor, head: Tensor, targets: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor]:
    """Weighted mean cross-entropy, and which tokens were guessed right.

    Args:
        hidden: [tokens, d] normalised.
        head: [vocab, d].
        targets: [tokens] int64.
        weights: [tokens] fp32.

    Returns:
        A number, and bool [tokens].
    """
    logits = functional.linear(hidden.to(torch.float32), head.to(torch.float32))
    each = functional.cross_entropy(logits, targets, reduction="none")
    loss = (each * weights).sum() / weights.sum().clamp(min=1e-6)
    return loss, logits.argmax(-1) == targets


def targets_of(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """Of every token the next id, its weight and its kind, flat; the last of a row has weight 0."""
    follow = rows.ids.roll(-1, 1)
    weights = rows.weights.roll(-1, 1)
    weights[:, -1] = 0
    return follow.flatten(), weights.flatten(), rows.kinds.roll(-1, 1).flatten()


def accuracy_by_kind(right: Tensor, weights: Tensor, kinds: Tensor, count: int) -> Tensor:
    """Right and all spoken targets of each kind, [2, count]."""
    spoken = (weights >= SPOKEN).to(torch.float32)
    kinds = kinds.clamp(max=count)
    both = torch.stack((right.to(torch.float32) * spoken, spoken))
    found = torch.zeros(2, count + 1, device=right.device)
    return found.index_add_(1, kinds, both)[:, :count]
