"""From raw projections to rotated queries and stored window keys. Knows no ring and no page."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from deepinfer.arch import Record
from deepinfer.ops.formats import encode_record
from deepinfer.ops.products import rms_norm
from deepinfer.ops.rotation import Rotation, rotate


class AttentionInputs(NamedTuple):
    """q [tokens, heads, head_dim] rotated; records [tokens, bytes] uint8, the window keys."""

    q: Tensor
    records: Tensor


def window_records(kv: Tensor, kv_norm: Tensor, by: Rotation, eps: float, record: Record) -> Tensor:
    """Normalise, rotate and store raw keys [tokens, head_dim] as records (D38)."""
    return encode_record(rotate(rms_norm(kv, kv_norm, eps), by), record)


def attention_inputs(
    q: Tensor, kv: Tensor, kv_norm: Tensor, by: Rotation, *, heads: int, eps: float, record: Record
) -> AttentionInputs:
    """Rotate queries (no per-head norm, D28); norm, rotate and quantise the window key.

    Args:
        q: [tokens, heads * head_dim] bf16 or fp32, output of `wq_b`.
        kv: [tokens, head_dim], output of `wkv`.
        kv_norm: [head_dim] norm weight.
        by: angles at the tokens' positions.
        heads: number of query heads; 0 = the record alone.
        eps: config key `rms_norm_eps`.
        record: format of the window records.
    """
    queries = rotate(q.unflatten(-1, (heads, kv.shape[-1])), by)
    return AttentionInputs(queries, window_records(kv, kv_norm, by, eps, record))
