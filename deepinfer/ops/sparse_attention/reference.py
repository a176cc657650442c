"""Attention over a window of recent keys and a few selected latents, with a sink per head.

Key and value are the same vector. Knows nothing of how entries were selected.
Source: `spec/model.md` 4 (attention kernel), 6.1; `spec/model-decisions.md` D34-D37.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Records
from deepinfer.ops.batch import Batch, PageViews, before, gather_entries
from deepinfer.ops.formats import decode_record
from deepinfer.ops.products import WIDE, curve
from deepinfer.ops.rotation import Rotation, rotate

BLOCK = 64  # slots between two updates of the running maximum (D35)
_START = -1e30  # finite, so that rows without a visible key give zero
_KEY_BYTES = 1 << 27  # bound on the decoded keys of one chunk of tokens


class Running(NamedTuple):
    """Softmax attention after some slots, fp32.

    high [tokens, heads, 1] largest score so far; total [tokens, heads, 1] sum of exp(score - high);
    out [tokens, heads, dim] sum of the values with those weights.
    """

    high: Tensor
    total: Tensor
    out: Tensor


def attend_block(state: Running, q: Tensor, keys: Tensor, visible: Tensor, scale: float) -> Running:
    """Take one block of slots into the running sums; parameters as in `attend`."""
    # Hidden slots may hold anything, NaN too: 0 * NaN would reach the sum of values.
    block = keys.masked_fill(~visible.unsqueeze(-1), 0.0).to(WIDE)
    scores = (q.to(WIDE) @ block.mT).to(torch.float32) * scale
    scores = scores.masked_fill(~visible.unsqueeze(1), -torch.inf)
    high = torch.maximum(state.high, scores.amax(-1, keepdim=True))
    shrink = curve(torch.exp, state.high - high)
    share = curve(torch.exp, scores - high)
    total = state.total * shrink + share.to(WIDE).sum(-1, keepdim=True).to(torch.float32)
    added = (share.to(q.dtype).to(WIDE) @ block).to(torch.float32)
    return Running(high, total, state.out * shrink + added)


def attend(q: Tensor, keys: Tensor, visible: Tensor, sink: Tensor, scale: float) -> Tensor:
    """Softmax attention in blocks of 64 slots with a running maximum.

    Numerators are rounded to the dtype of `q` before they multiply the values, the denominator
    sums them unrounded; the sink is in the denominator only.

    Args:
        q: [tokens, heads, dim] bf16 or fp32.
        keys: [tokens, slots, dim] fp32.
        visible: [tokens, slots] bool.
        sink: [heads] fp32.
        scale: factor on the dot products.

    Returns:
        [tokens, heads, dim] in the dtype of `q`; zero where nothing is visible.
    """
    state = start(q)
    for low in range(0, keys.shape[1], BLOCK):
        slots = slice(low, low + BLOCK)
        state = attend_block(state, q, keys[:, slots], visible[:, slots], scale)
    total = state.total + curve(torch.exp, sink.view(1, -1, 1) - state.high)
    return (state.out / total).to(q.dtype)


def start(q: Tensor) -> Running:
    """Running sums before the first slot, for queries [tokens, heads, dim]."""
    high = torch.full((*q.shape[:2], 1), _START, device=q.device)
    return Running(high, torch.zeros_like(high), torch.zeros(q.shape, device=q.device))


def window_back(batch: Batch, window: int) -> tuple[Tensor, Tensor]:
    """The window part of the key list: how far back each slot looks, and whether it is used.

    Positions ascend from max(lower, p - window + 1) to p; unused slots come last (D36, D37).

    Returns:
        back [tokens, window] int64 >= 0, used [tokens, window] bool.
    """
    first = torch.maximum(batch.lower, batch.positions - window + 1).clamp(min=0)
    slot = torch.arange(window, device=first.device)
    back = batch.positions.unsqueeze(1) - (first.unsqueeze(1) + slot)
    return back.clamp(min=0), back >= 0


def sparse_attention(
    q: Tensor,
    records: Tensor,
    ring: Tensor,
    ids: Tensor | None,
    pages: PageViews | None,
    sink: Tensor,
    batch: Batch,
    by: Rotation,
    *,
    window: int,
    scale: float,
    layout: Records,
) -> Tensor:
    """Attend to the window and to the selected entries, then rotate the output back.

    Args:
        q: [tokens, heads, head_dim] rotated queries, bf16 or fp32.
        records: [tokens, bytes] this step's window records (not yet in the ring).
        ring: [slots, ring rows, bytes] window records of earlier steps.
        ids: [tokens, top-k] int64 selected entries, ascending, -1 = none; None without a
            compressed branch.
        pages: the owner's page sections; None iff `ids` is.
        sink: [heads] fp32.
        batch: the tokens; `lower` bounds the window.
        by: angles at the tokens' positions.
        window: config key `sliding_window`.
        scale: head_dim^-0.5.
        layout: record formats.

    Returns:
        [tokens, heads, head_dim] in the dtype of `q`.
    """
    back, used = window_back(batch, window)
    width = layout.window.width
    slots = window + (0 if ids is None else ids.shape[1])
    step = max(1, _KEY_BYTES // (slots * width * 8))
    table = batch.page_table[batch.rows]
    parts: list[Tensor] = []
    stored = before(batch, ring, records, back)
    for low in range(0, len(q), step):
        rows = slice(low, low + step)
        keys, visible = decode_record(stored[rows], layout.window), used[rows]
        if ids is not None:
            assert pages is not None, "selected entries come with their pages"
            chosen = ids[rows]
            entries = gather_entries(pages.latents, table[rows], chosen.clamp(min=0))
            keys = torch.cat((keys, decode_record(entries, layout.latent)), dim=1)
            visible = torch.cat((visible, chosen >= 0), dim=1)
        parts.append(attend(q[rows], keys, visible, sink, scale))
    return rotate(torch.cat(parts), by, inverse=True)
