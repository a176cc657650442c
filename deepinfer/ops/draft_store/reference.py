"""Drafts at hand go behind the tokens of their rows. Knows nothing of who proposed them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class DraftRows(Protocol):
    """State of all rows, as `Rows` holds it."""

    tokens: Tensor
    length: Tensor
    drafts: Tensor
    confidence: Tensor


def draft_store(table: DraftRows, rows: Tensor, tokens: Tensor, confidence: Tensor) -> Tensor:
    """Write drafts and what the host gets of them.

    Args:
        table: of all rows, changed in place.
        rows: [n] int64; 0 is padding, of which any may stay.
        tokens: [n, drafts] int64.
        confidence: [n, drafts] raw logits.

    Returns:
        [n, 2 drafts] int32 of `pack_drafts`.
    """
    count = tokens.shape[1]
    columns = table.length[rows].unsqueeze(1) + torch.arange(count, device=rows.device)
    table.tokens[rows.unsqueeze(1), columns] = tokens
    table.confidence[rows, :count] = confidence
    table.drafts.index_fill_(0, rows, count)
    return pack_drafts(tokens, confidence)


def pack_drafts(tokens: Tensor, confidence: Tensor) -> Tensor:
    """Join drafts [groups, drafts] and their fp32 confidences into [groups, 2 drafts] int32."""
    bits = confidence.to(torch.float32).contiguous().view(torch.int32)
    return torch.cat((tokens.to(torch.int32), bits), dim=1)
