"""Embeddings as equal residual streams, the first one collapsed (D22). Knows no blocks."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Embedded(NamedTuple):
    """streams [tokens, m, hidden]; pre [tokens, m] fp32, 1 for the first stream."""

    streams: Tensor
    pre: Tensor


def embed_streams(ids: Tensor, table: Tensor, *, streams: int, dtype: torch.dtype) -> Embedded:
    """The rows of tokens, once a stream.

    Args:
        ids: [tokens] int64.
        table: [vocab, hidden].
        streams: m, config key `hc_mult`.
        dtype: of the streams.
    """
    pre = torch.zeros(len(ids), streams, device=ids.device)
    pre[:, 0] = 1.0
    return Embedded(table[ids].to(dtype).unsqueeze(1).repeat(1, streams, 1), pre)
