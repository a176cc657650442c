"""Queries and window keys on the CPU, with a faster encoder. Bits equal the reference's.

Knows no ring and no page.
"""

from __future__ import annotations

from torch import Tensor

from deepinfer.arch import Record
from deepinfer.ops.attention_inputs.reference import AttentionInputs
from deepinfer.ops.cpu_codes import encode_record
from deepinfer.ops.products import rms_norm
from deepinfer.ops.rotation import Rotation, rotate


def attention_inputs(
    q: Tensor, kv: Tensor, kv_norm: Tensor, by: Rotation, *, heads: int, eps: float, record: Record
) -> AttentionInputs:
    """As the reference."""
    queries = rotate(q.unflatten(-1, (heads, kv.shape[-1])), by)
    return AttentionInputs(queries, encode_record(rotate(rms_norm(kv, kv_norm, eps), by), record))
