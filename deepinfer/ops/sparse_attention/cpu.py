"""Sparse attention on the CPU. Bits equal the reference's, up to the double rounding it allows.

Tokens of long slices share the decoded keys of their window: their products run as matrices over a
band of positions, whatever place in the key list a position has for each token. Tokens of short
slices each gather their own keys. Knows nothing of how entries were selected.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Records
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.cpu_codes import decode_records
from deepinfer.ops.cpu_tiles import gather, runs
from deepinfer.ops.products import WIDE, curve
from deepinfer.ops.rotation import Rotation, rotate
from deepinfer.ops.sparse_attention.reference import BLOCK, window_back

_START = -1e30  # as in the reference: finite, so that rows without a visible key give zero
_LONG = 16  # tokens from which a slice goes as a band
_WIDENED = 2  # tokens of short slices whose keys are widened at a time
_TILE = 16  # tokens of a band at a time
_KEY_BYTES = 1 << 23  # bound on the widened keys of one tile or chunk: they stay in the cache


class Shares(NamedTuple):
    """The softmax of all blocks, each relative to the running maximum it saw.

    share [tokens, heads, slots] float64 (rounded to bf16); shrink [tokens, heads, blocks, 1]
    fp32 rescales what came before a block; total [tokens, heads, 1] fp32, the sink included.
    """

    share: Tensor
    shrink: Tensor
    total: Tensor


def _shares(scores: Tensor, visible: Tensor, sink: Tensor) -> Shares:
    """Shares of scores [tokens, heads, slots] fp32, changed in place; visible [tokens, slots]."""
    slots = scores.shape[2]
    scores.masked_fill_(~visible.unsqueeze(1), -torch.inf)
    if slots % BLOCK:
        scores = torch.nn.functional.pad(scores, (0, -slots % BLOCK), value=-torch.inf)
    scores = scores.unflatten(2, (-1, BLOCK))
    high = scores.amax(-1, keepdim=True).clamp_(min=_START).cummax(2).values
    before_block = torch.cat((torch.full_like(high[:, :, :1], _START), high[:, :, :-1]), dim=2)
    shrink = curve(torch.exp, before_block - high)
    wide = torch.exp_((scores - high).to(WIDE))
    share = wide.to(torch.float32)
    sums = share.to(WIDE).sum(-1, keepdim=True).to(torch.float32)
    total = torch.zeros_like(sums[:, :, 0])
    for block in range(sums.shape[2]):
        total = total * shrink[:, :, block] + sums[:, :, block]
    total += curve(torch.exp, sink.view(1, -1, 1) - high[:, :, -1])
    return Shares(share.to(torch.bfloat16).to(WIDE).flatten(2)[:, :, :slots], shrink, total)


def _by_row(
    q: Tensor,
    stored: Tensor,
    used: Tensor,
    entries: Tensor | None,
    chosen: Tensor | None,
    sink: Tensor,
    scale: float,
    layout: Records,
) -> Tensor:
    """Attention of tokens that each bring their keys.

    Args:
        q: [tokens, heads, dim] bf16.
        stored: [tokens, window, bytes] window records; hidden ones are zeroed.
        used: [tokens, window] bool.
        entries: [tokens, k, bytes] latent records, likewise, or None.
        chosen: [tokens, k] bool, which of them are visible; None iff `entries` is.
        sink: [heads] fp32.
        scale: factor on the dot products.
        layout: record formats.
    """
    window, slots = used.shape[1], used.shape[1] + (0 if chosen is None else chosen.shape[1])
    keys = torch.zeros(len(q), -(-slots // BLOCK) * BLOCK, q.shape[2])
    # Hidden slots may hold anything, NaN too: 0 * NaN would reach the sum of values.
    keys[:, :window] = decode_records(stored.mul_(used.unsqueeze(-1)), layout.window)
    visible = used
    if entries is not None and chosen is not None:
        keys[:, window:slots] = decode_records(entries.mul_(chosen.unsqueeze(-1)), layout.latent)
        visible = torch.cat((used, chosen), dim=1)
    visible = torch.nn.functional.pad(visible, (0, keys.shape[1] - slots))
    # Keys are widened twice, a few tokens at a time: that costs less than missing the cache.
    chunks = [slice(low, low + _WIDENED) for low in range(0, len(q), _WIDENED)]
    wide = q.to(WIDE)
    scores = torch.empty(*q.shape[:2], keys.shape[1])
    for rows in chunks:
        scores[rows] = wide[rows] @ keys[rows].to(WIDE).mT
    share, shrink, total = _shares(scores.mul_(scale), visible, sink)
    blocks = share.unflatten(2, (-1, BLOCK)).transpose(1, 2)
    added = torch.empty(*blocks.shape[:3], q.shape[2])
    for rows in chunks:
        values = keys[rows].to(WIDE).unflatten(1, (-1, BLOCK))
        added[rows] = (blocks[rows].flatten(0, 1) @ values.flatten(0, 1)).view(added[rows].shape)
    out = torch.zeros(q.shape)
    for block in range(blocks.shape[1]):
        out = out.mul_(shrink[:, :, block]).add_(added[:, block])
    return (out / total).to(q.dtype)


class _Band(NamedTuple):
    """Decoded keys of one slice, bf16.

    keys [positions + window, dim], consecutive positions from `origin`, then zeros; first [tokens]
    int64 the first position of each token's window; used [tokens, window]; entries [count + 1,
    dim] the request's latents and a zero row (None without a compressed branch); ids [tokens, k].
    """

    keys: Tensor
    origin: int
    first: Tensor
    used: Tensor
    entries: Tensor | None
    ids: Tensor | None


def _band(
    records: Tensor,
    ring: Tensor,
    ids: Tensor | None,
    pages: PageViews | None,
    batch: Batch,
    window: int,
    layout: Records,
) -> _Band:
    """Decode what the single slice of `batch` may look at."""
    back, used = window_back(batch, window)
    first = batch.positions - back[:, 0]
    origin, start = int(first[0]), int(batch.positions[0])
    earlier = torch.arange(origin, start) % ring.shape[1]
    stored = torch.cat((ring[batch.token_slots[0]][earlier], records))
    keys = decode_records(stored, layout.window).to(torch.bfloat16)
    keys = torch.cat((keys, keys.new_zeros(window, keys.shape[1])))
    if ids is None or pages is None:
        return _Band(keys, origin, first, used, None, None)
    count = (int(batch.positions[-1]) + 1) // pages.ratio
    table = batch.page_table[batch.rows[0], : -(-count // pages.entries)]
    entries = decode_records(pages.latents[table].flatten(0, 1)[:count], layout.latent)
    entries = entries.to(torch.bfloat16)
    entries = torch.cat((entries, entries.new_zeros(1, entries.shape[1])))
    return _Band(keys, origin, first, used, entries, torch.where(ids < 0, count, ids))


def _band_tile(q: Tensor, band: _Band, rows: slice, sink: Tensor, scale: float) -> Tensor:
    """Attention of the tokens `rows` of a band; q is theirs."""
    tokens, heads, dim = q.shape
    window = band.used.shape[1]
    first = band.first[rows]
    spread = int(first[-1] - first[0])
    low = int(first[0]) - band.origin
    keys = band.keys[low : low + spread + window].to(WIDE)
    # Slot i of a token is position first + i: column first - first[0] + i of the tile's keys.
    column = (first - first[0]).unsqueeze(1) + torch.arange(window)
    column = column.unsqueeze(1).expand(-1, heads, -1)
    wide = q.to(WIDE)
    scores = (wide.view(-1, dim) @ keys.mT).view(tokens, heads, -1).gather(2, column)
    scores, visible = scores.to(torch.float32), band.used[rows]
    chosen = keys.new_zeros(tokens, 0, dim)
    if band.entries is not None and band.ids is not None:
        ids = band.ids[rows]
        chosen = band.entries.index_select(0, ids.flatten()).view(tokens, -1, dim).to(WIDE)
        scores = torch.cat((scores, (wide @ chosen.mT).to(torch.float32)), dim=2)
        visible = torch.cat((visible, ids < len(band.entries) - 1), dim=1)
    share, shrink, total = _shares(scores.mul_(scale), visible, sink)
    out = torch.zeros(q.shape)
    for block, start in enumerate(range(0, share.shape[2], BLOCK)):
        end = min(start + BLOCK, share.shape[2])
        added = torch.zeros((), dtype=WIDE)
        if start < window:
            slots = slice(start, min(end, window))
            width = spread + slots.stop - slots.start
            spaced = share.new_zeros(tokens, heads, width)
            spaced.scatter_(2, column[:, :, slots] - start, share[:, :, slots])
            added = (spaced.view(-1, width) @ keys[start : start + width]).view(q.shape)
        if end > window:
            slots = slice(max(start, window), end)
            of_chosen = chosen[:, slots.start - window : end - window]
            added = added + share[:, :, slots] @ of_chosen
        out = out.mul_(shrink[:, :, block]).add_(added.to(torch.float32))
    return (out / total).to(q.dtype)


def _window(batch: Batch, ring: Tensor, records: Tensor, back: Tensor) -> Tensor:
    """As `before`, for short slices: nearly all that they see was stored by earlier steps."""
    wanted = batch.positions.unsqueeze(1) - back
    stored = gather(ring, batch.token_slots.unsqueeze(1), wanted % ring.shape[1])
    token, slot = torch.where(wanted >= batch.starts.unsqueeze(1))
    stored[token, slot] = records[token - back[token, slot]]
    return stored


def _some(batch: Batch, rows: slice) -> Batch:
    """The batch of neighbouring whole slices; `slices` and table stay those of the step."""
    names = ("positions", "rows", "starts", "ends", "lower", "cached")
    return replace(batch, **{name: getattr(batch, name)[rows] for name in names})


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
    """As the reference."""
    slots = window if ids is None else window + ids.shape[1]
    chunk = max(1, _KEY_BYTES // (slots * q.shape[2] * 8))
    parts: list[Tensor] = []
    for first, last, long in runs(batch.slices, _LONG):
        whole = slice(first, last)
        some, fresh = _some(batch, whole), records[whole]
        of_run = None if ids is None else ids[whole]
        if long:
            band = _band(fresh, ring, of_run, pages, some, window, layout)
            if bool(torch.isfinite(band.keys).all()):
                for low in range(0, last - first, min(_TILE, chunk)):
                    rows = slice(low, min(low + min(_TILE, chunk), last - first))
                    parts.append(_band_tile(q[whole][rows], band, rows, sink, scale))
                continue
        back, used = window_back(some, window)
        table = batch.page_table[some.rows]
        stored = _window(some, ring, fresh, back)
        for low in range(0, last - first, chunk):
            rows = slice(low, low + chunk)
            entries = chosen = None
            if of_run is not None and pages is not None:
                picked = of_run[rows]
                chosen, entry = picked >= 0, picked.clamp(min=0)
                page = table[rows].gather(1, entry // pages.entries)
                entries = gather(pages.latents, page, entry % pages.entries)
            parts.append(
                _by_row(
                    q[whole][rows], stored[rows], used[rows], entries, chosen, sink, scale, layout
                )
            )
    return rotate(torch.cat(parts), by, inverse=True)
