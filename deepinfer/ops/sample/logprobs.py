"""Log-probabilities of chosen tokens and of the likeliest ones. Knows nothing of rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.sample.elementary import log_softmax


class RowLogprobs(NamedTuple):
    """chosen [n] fp32; ranks [n] int32, 1 = likeliest, 0 = not asked for; ids [n, k] int32 and
    values [n, k] fp32 by value descending, id ascending, id -1 = none."""

    chosen: Tensor
    ranks: Tensor
    ids: Tensor
    values: Tensor


def raw_logprobs(logits: Tensor) -> Tensor:
    """[n, vocab] fp32 log-softmax of fp32 logits; rows that are not finite mean nothing."""
    return log_softmax(logits - logits.amax(-1, keepdim=True))


def top_logprobs(values: Tensor, chosen: Tensor, count: int) -> RowLogprobs:
    """The chosen entry of each row, its rank, and the `count` likeliest entries.

    Args:
        values: [n, vocab] fp32 log-probabilities, -inf = impossible.
        chosen: [n] int64; -1 (no token) gives value 0 and rank 0.
        count: entries, 0..vocab.
    """
    none = chosen < 0
    index = chosen.clamp(min=0).unsqueeze(1)
    value = values.gather(1, index)
    ids = torch.arange(values.shape[1], device=values.device)
    ahead = (values > value) | ((values == value) & (ids < index))
    rank = torch.where(none, 0, 1 + ahead.sum(1))
    ordered, order = (
        values.sort(dim=1, descending=True, stable=True) if count else (values[:, :0], index[:, :0])
    )
    # Copies: whoever keeps results would keep whole rows of the vocabulary.
    ordered, order = ordered[:, :count].clone(), order[:, :count]
    order = order.masked_fill(ordered == -math.inf, -1)
    chosen_value = torch.where(none, 0.0, value.squeeze(1))
    return RowLogprobs(chosen_value, rank.to(torch.int32), order.to(torch.int32), ordered)


def limited(found: RowLogprobs, wanted: Tensor) -> RowLogprobs:
    """Blank what a row did not ask for: [n] int64 entries `wanted`, -1 = not even the chosen."""
    place = torch.arange(found.ids.shape[1], device=wanted.device)
    over = place >= wanted.unsqueeze(1)
    none = wanted < 0
    return RowLogprobs(
        found.chosen.masked_fill(none, 0.0),
        found.ranks.masked_fill(none, 0),
        found.ids.masked_fill(over, -1),
        found.values.masked_fill(over, -math.inf),
    )
