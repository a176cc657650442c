"""Hashes the last few tokens to rows of an Engram table. Knows nothing of the table's content.

Source: `spec/model.md` 9.4; `spec/model-decisions.md` D44-D46.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class EngramHash(NamedTuple):
    """One layer's constants, int64.

    classes [vocab] token id -> class; multipliers [n-gram max]; primes, offsets [columns] in
    n-gram-major order; pad the class of a missing token (int).
    """

    classes: Tensor
    multipliers: Tensor
    primes: Tensor
    offsets: Tensor
    pad: int


def engram_rows(window: Tensor, table: EngramHash) -> Tensor:
    """Row ids of every token.

    A missing or dead token ends its n-gram: that slot and all older ones count as the pad class.

    Args:
        window: [tokens, n-gram max] int64 token ids, newest (the token itself) first; -1 = before
            the start of the sequence, or an image position.
        table: the layer's constants.

    Returns:
        [tokens, columns] int64, each below the table's row count.
    """
    alive = (window >= 0).cumprod(1).bool()
    slots = torch.where(alive, table.classes[window.clamp(min=0)], table.pad)
    sizes = window.shape[1] - 1
    heads = table.primes.shape[0] // sizes
    mixed = slots[:, 0] * table.multipliers[0]
    rows: list[Tensor] = []
    for back in range(1, sizes + 1):
        mixed = mixed ^ (slots[:, back] * table.multipliers[back])
        columns = slice((back - 1) * heads, back * heads)
        rows.append(mixed.unsqueeze(1) % table.primes[columns] + table.offsets[columns])
    return torch.cat(rows, dim=1)
