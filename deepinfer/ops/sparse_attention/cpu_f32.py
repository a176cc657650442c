"""Sparse attention on the CPU in fp32, one softmax over all that a token sees.

A token's window keys always stand in the same columns: those of a span of 16 positions share a band
that starts a whole window before the span. So the products of a token's heads have the same shape
and order whether it comes alone or with its span. Knows nothing of how entries were selected.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from deepinfer.arch import Records
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.cpu_codes import decode_records
from deepinfer.ops.cpu_rows import TILE
from deepinfer.ops.cpu_tiles import gather, runs
from deepinfer.ops.products import WIDE
from deepinfer.ops.rotation import Rotation, rotate

_START = -1e30  # as in the reference: finite, so that rows without a visible key give zero
_LONG = 6  # tokens from which a slice goes span by span
_HEADS = 8  # rows of queries of a token are padded to a multiple of it
_KEY_BYTES = 1 << 22  # bound on the decoded keys of tokens that each bring their own


class Bands(NamedTuple):
    """The columns of each token: position [tokens, columns] int64, and which are visible; first
    [tokens] is the lowest visible position."""

    position: Tensor
    used: Tensor
    first: Tensor

    def rows(self, rows: slice) -> Bands:
        """Those of neighbouring tokens."""
        return Bands(self.position[rows], self.used[rows], self.first[rows])


class Queries(NamedTuple):
    """What all tokens share or bring, prepared for `_attend`.

    q [tokens, heads, dim] fp32, scaled, with rows of zeros up to a multiple of `_HEADS`; sink
    [1, heads, 1] fp32 likewise; hidden [tokens, columns] fp32, added to the scores: minus infinity
    where a column is hidden; unchosen [tokens, k] likewise for the selection, or None.
    """

    q: Tensor
    sink: Tensor
    hidden: Tensor
    unchosen: Tensor | None

    def rows(self, rows: slice) -> Queries:
        """Those of neighbouring tokens."""
        unchosen = None if self.unchosen is None else self.unchosen[rows]
        return Queries(self.q[rows], self.sink, self.hidden[rows], unchosen)


def _hiding(visible: Tensor) -> Tensor:
    return torch.where(visible, 0.0, -torch.inf)


def _prepare(q: Tensor, sink: Tensor, used: Tensor, ids: Tensor | None, scale: float) -> Queries:
    more = -q.shape[1] % _HEADS
    return Queries(
        pad(q.to(torch.float32) * scale, (0, 0, 0, more)),
        pad(sink, (0, more)).view(1, -1, 1),
        _hiding(used),
        None if ids is None else _hiding(ids >= 0),
    )


def _shares(scores: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """exp(scores - high) rounded to bf16, as fp32, and the unrounded sums float64 [*, 1] (D35)."""
    exponents = scores.sub_(high).to(WIDE).exp_()
    return exponents.to(torch.bfloat16).to(torch.float32), exponents.sum(-1, keepdim=True)


def _attend(by: Queries, keys: Tensor, latents: Tensor | None) -> Tensor:
    """Attention of some tokens, [tokens, heads, dim] bf16.

    Args:
        by: their queries.
        keys: [columns, dim] of all tokens or [tokens, columns, dim], fp32, finite.
        latents: [tokens, k, dim] fp32 that each selected, finite where not chosen, or None.
    """
    tokens = by.q.shape[:2]
    if keys.dim() == 2:
        scores = (by.q.flatten(0, 1) @ keys.mT).unflatten(0, tokens)
    else:
        scores = by.q @ keys.mT
    scores += by.hidden.unsqueeze(1)
    high, of_latents = scores.amax(-1, keepdim=True), None
    if latents is not None and by.unchosen is not None:
        of_latents = by.q @ latents.mT
        of_latents += by.unchosen.unsqueeze(1)
        high = torch.maximum(high, of_latents.amax(-1, keepdim=True))
    high.clamp_(min=_START)
    share, total = _shares(scores, high)
    if keys.dim() == 2:
        out = (share.flatten(0, 1) @ keys).unflatten(0, tokens)
    else:
        out = share @ keys
    if latents is not None and of_latents is not None:
        share, more = _shares(of_latents, high)
        total += more
        out = torch.baddbmm(out, share, latents)
    total += (by.sink - high).to(WIDE).exp_()
    return out.div_(total.to(torch.float32)).to(torch.bfloat16)


def _bands(batch: Batch, window: int) -> Bands:
    positions = batch.positions
    back = -(-(window - 1) // TILE) * TILE
    base = positions // TILE * TILE - back
    wanted = base.unsqueeze(1) + torch.arange(back + TILE)
    first = torch.maximum(batch.lower, positions - window + 1).clamp_(min=0)
    used = (wanted >= first.unsqueeze(1)) & (wanted <= positions.unsqueeze(1))
    return Bands(wanted, used, first)


def _own_keys(batch: Batch, ring: Tensor, records: Tensor, bands: Bands, layout: Records) -> Tensor:
    """Band keys of tokens of short slices, each decoded for itself: fp32 [tokens, columns, dim].

    Args:
        batch: some tokens.
        ring: as in the reference.
        records: window records of these tokens, and of the earlier ones of their slices before.
        bands: of these tokens.
        layout: record formats.
    """
    wanted, used = bands.position, bands.used
    stored = gather(ring, batch.token_slots.unsqueeze(1), wanted % ring.shape[1])
    token, column = torch.where(used & (wanted >= batch.starts.unsqueeze(1)))
    behind = batch.positions[token] - wanted[token, column]
    earlier = len(records) - len(wanted)
    fresh = records.index_select(0, earlier + token - behind)
    stored.flatten(0, 1).index_copy_(0, token * wanted.shape[1] + column, fresh)
    # Hidden columns may hold anything, NaN too: 0 * NaN would reach the sum of values.
    return decode_records(stored.mul_(used.unsqueeze(-1)), layout.window)


def _own_latents(
    batch: Batch, ids: Tensor | None, pages: PageViews | None, layout: Records
) -> Tensor | None:
    """Latents that tokens selected, each decoded for itself: fp32 [tokens, k, dim]."""
    if ids is None or pages is None:
        return None
    chosen, entry = ids >= 0, ids.clamp(min=0)
    page = batch.page_table[batch.rows].gather(1, entry // pages.entries)
    stored = gather(pages.latents, page, entry % pages.entries)
    return decode_records(stored.mul_(chosen.unsqueeze(-1)), layout.latent)


def _slice_keys(
    batch: Batch, ring: Tensor, records: Tensor, bands: Bands, layout: Records
) -> Tensor:
    """Keys of one slice from the first to the last column that its bands have, fp32."""
    start, stop = int(batch.positions[0]), int(batch.positions[-1]) + 1
    origin, end = int(bands.position[0, 0]), int(bands.position[-1, -1]) + 1
    earlier = torch.arange(min(int(bands.first[0]), start), start)
    slots = batch.token_slots[:1].expand(len(earlier))
    known = torch.cat((gather(ring, slots, earlier % ring.shape[1]), records))
    keys = decode_records(known, layout.window)
    return pad(keys, (0, 0, start - len(earlier) - origin, end - stop))


def _slice_latents(batch: Batch, pages: PageViews, layout: Records) -> Tensor:
    """All latents that one slice can have selected, fp32 [count + 1, dim]; the last one is zero."""
    count = (int(batch.positions[-1]) + 1) // pages.ratio
    table = batch.page_table[batch.rows[0], : -(-count // pages.entries)]
    stored = pages.latents[table].flatten(0, 1)[:count]
    return pad(decode_records(stored, layout.latent), (0, 0, 0, 1))


def _spans(starts: list[int]) -> list[tuple[int, int]]:
    """Bounds of the tokens of one slice whose bands start alike."""
    cuts = [i for i, start in enumerate(starts) if not i or start != starts[i - 1]]
    return list(pairwise([*cuts, len(starts)]))


def _some(batch: Batch, rows: slice) -> Batch:
    """The batch of neighbouring tokens; `slices` and table stay those of the step."""
    names = ("positions", "rows", "starts", "ends", "lower", "cached")
    return replace(batch, **{name: getattr(batch, name)[rows] for name in names})


def _by_span(
    by: Queries, keys: Tensor, bands: Bands, latents: Tensor | None, ids: Tensor | None
) -> list[Tensor]:
    """Attention of one slice, span by span.

    Args:
        by: its queries.
        keys: of `_slice_keys`.
        bands: of the slice.
        latents: of `_slice_latents`, or None.
        ids: [tokens, k] selected entries, or None.
    """
    positions = bands.position
    starts = (positions[:, 0] - positions[0, 0]).tolist()
    chosen = None
    if latents is not None and ids is not None:
        chosen = torch.where(ids < 0, len(latents) - 1, ids)
    parts: list[Tensor] = []
    for first, last in _spans(starts):
        rows, own = slice(first, last), None
        if latents is not None and chosen is not None:
            own = latents.index_select(0, chosen[rows].flatten()).unflatten(0, chosen[rows].shape)
        band = keys[starts[first] : starts[first] + positions.shape[1]]
        parts.append(_attend(by.rows(rows), band, own))
    return parts


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
    """As the reference, but for the order of fp32 sums."""
    bands = _bands(batch, window)
    if ids is not None:
        ids = pad(ids, (0, -ids.shape[1] % TILE), value=-1)
    queries = _prepare(q, sink, bands.used, ids, scale)
    columns = bands.used.shape[1] + (0 if ids is None else ids.shape[1])
    step = max(1, _KEY_BYTES // (columns * q.shape[2] * 4))
    parts: list[Tensor] = []
    for first, last, long in runs(batch.slices, _LONG):
        run = slice(first, last)
        if long:
            some, band = _some(batch, run), bands.rows(run)
            keys = _slice_keys(some, ring, records[run], band, layout)
            if all(math.isfinite(bound) for bound in keys.aminmax()):
                latents = None if pages is None else _slice_latents(some, pages, layout)
                of_run = None if ids is None else ids[run]
                parts += _by_span(queries.rows(run), keys, band, latents, of_run)
                continue
        for low in range(first, last, step):
            rows = slice(low, min(low + step, last))
            some, band = _some(batch, rows), bands.rows(rows)
            keys = _own_keys(some, ring, records[first : rows.stop], band, layout)
            latents = _own_latents(some, None if ids is None else ids[rows], pages, layout)
            parts.append(_attend(queries.rows(rows), keys, latents))
    out = parts[0] if len(parts) == 1 else torch.cat(parts)
    return rotate(out[:, : q.shape[1]], by, inverse=True)
