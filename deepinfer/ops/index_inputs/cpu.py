"""Index queries on the CPU, with a faster encoder. Bits equal the reference's. Knows no key."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.arch import Record
from deepinfer.ops.cpu_codes import encode_record
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.products import linear
from deepinfer.ops.rotation import Rotation, rotate


def index_inputs(
    q: Tensor,
    hidden: Tensor,
    weights_proj: Tensor,
    by: Rotation,
    *,
    scale: float,
    record: Record,
) -> IndexQueries:
    """As the reference."""
    weights = linear(hidden, weights_proj).to(torch.float32) * scale
    queries = rotate(q.unflatten(-1, (weights.shape[-1], -1)), by)
    return IndexQueries(encode_record(queries, record), weights)
