"""From projections to stored index queries and scaled head weights. Knows no key."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Record
from deepinfer.ops.formats import encode_record
from deepinfer.ops.products import linear
from deepinfer.ops.rotation import Rotation, rotate


class IndexQueries(NamedTuple):
    """records [tokens, heads, bytes] uint8; weights [tokens, heads] fp32, factors included."""

    records: Tensor
    weights: Tensor


def index_inputs(
    q: Tensor,
    hidden: Tensor,
    weights_proj: Tensor,
    by: Rotation,
    *,
    scale: float,
    record: Record,
) -> IndexQueries:
    """Rotate and quantise index queries; project and scale the head weights (D10, D30).

    The projection is rounded to the activation dtype, the scale multiplies in fp32.

    Args:
        q: [tokens, heads * index_head_dim], output of the indexer's `wq_b`.
        hidden: [tokens, d] bf16 or fp32, the normalised attention input.
        weights_proj: [heads, d].
        by: angles at the tokens' positions.
        scale: index_head_dim^-0.5 * heads^-0.5.
        record: format of index keys and queries.
    """
    weights = linear(hidden, weights_proj).to(torch.float32) * scale
    queries = rotate(q.unflatten(-1, (weights.shape[-1], -1)), by)
    return IndexQueries(encode_record(queries, record), weights)
