"""What the draft stages need to know of rows. Knows nothing of the stages.

Source: `spec/model.md` 10.1; `spec/model-decisions.md` D49, D50.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class KnownRows(Protocol):
    """State of all rows, as `Rows` holds it."""

    tokens: Tensor
    length: Tensor
    slot: Tensor
    decoder_start: Tensor
    lower: Tensor


class DraftStart(NamedTuple):
    """One block a request, all int64.

    newest [n], the newest token; anchors [n], position of the last token whose features are stored;
    slots [n]; lower [n], first position with stored features; ids, positions [n * block] of the
    blocks: the newest token, then the noise token.
    """

    newest: Tensor
    anchors: Tensor
    slots: Tensor
    lower: Tensor
    ids: Tensor
    positions: Tensor


def draft_start(table: KnownRows, rows: Tensor, *, block: int, noise: int) -> DraftStart:
    """Blocks that follow the newest tokens of rows, whose own features do not exist yet.

    Args:
        table: of all rows.
        rows: [n] int64; 0 is padding.
        block: config key `dspark_block_size`.
        noise: config key `dspark_noise_token_id`.
    """
    length = table.length[rows]
    return blocks(
        table.tokens[rows, length - 1],
        (length - 2).clamp(min=0),
        torch.where(rows > 0, table.slot[rows], 0),
        torch.maximum(table.decoder_start[rows], table.lower[rows]),
        block=block,
        noise=noise,
    )


def blocks(
    newest: Tensor, anchors: Tensor, slots: Tensor, lower: Tensor, *, block: int, noise: int
) -> DraftStart:
    """The same for rows of which everything is known."""
    ids = newest.new_full((len(newest), block), noise)
    ids[:, 0] = newest
    positions = anchors.unsqueeze(1) + 1 + torch.arange(block, device=anchors.device)
    return DraftStart(newest, anchors, slots, lower, ids.flatten(), positions.flatten())
