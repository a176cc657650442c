"""Attention of a draft block: the window before the anchor and the whole block, both ways.

Knows nothing of the stages around it. Source: `spec/model.md` 10.1; `spec/model-decisions.md` D49.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.arch import Record
from deepinfer.ops.formats import decode_record
from deepinfer.ops.rotation import Rotation, rotate
from deepinfer.ops.sparse_attention.reference import attend


def draft_attention(
    q: Tensor,
    records: Tensor,
    ring: Tensor,
    slots: Tensor,
    anchors: Tensor,
    lower: Tensor,
    sink: Tensor,
    by: Rotation,
    *,
    window: int,
    scale: float,
    record: Record,
) -> Tensor:
    """Every query of a block sees ring positions anchor - window + 1 .. anchor and all block keys.

    Args:
        q: [requests, queries, heads, head_dim] rotated queries of the first places of a block.
        records: [requests, block, bytes] keys of the block itself; they are not stored.
        ring: [all slots, ring rows, bytes] the stage's draft ring.
        slots: [requests] int64, slot of each request.
        anchors: [requests] int64, position of the last committed token.
        lower: [requests] int64, first position whose ring row exists (decoder start).
        sink: [heads] fp32.
        by: angles of the queries' positions, rows in (request, query) order.
        window: config key `sliding_window`.
        scale: head_dim^-0.5.
        record: format of ring and block records.

    Returns:
        [requests, queries, heads, head_dim], rotated back.
    """
    requests, queries, block = *q.shape[:2], records.shape[1]
    first = torch.maximum(lower, anchors - window + 1).clamp(min=0)
    position = first.unsqueeze(1) + torch.arange(window, device=q.device)
    used = position <= anchors.unsqueeze(1)
    past = ring[slots.unsqueeze(1), position % ring.shape[1]]
    keys = decode_record(torch.cat((past, records), dim=1), record)
    visible = torch.cat((used, used.new_ones(requests, block)), dim=1)
    out = attend(
        q.flatten(0, 1),
        keys.repeat_interleave(queries, 0),
        visible.repeat_interleave(queries, 0),
        sink,
        scale,
    )
    return rotate(out, by, inverse=True).unflatten(0, (requests, queries))
