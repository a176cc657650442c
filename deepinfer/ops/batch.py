"""Which tokens one step computes and where their state lies, as tensors that operations index.

Tokens of a step are flattened; those of one request are neighbours, in ascending position (a
*slice*). Knows nothing of requests, plans or layers.

Row 0 of every table, slot 0 and page 0 are reserved: writes that must go nowhere go there, and
nothing ever reads them as data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS


@dataclass(frozen=True)
class Batch:
    """One step's tokens.

    Attributes:
        positions: [tokens] int64, absolute position of each token.
        rows: [tokens] int64, index of the token's request in `slots` and `page_table`.
        starts: [tokens] int64, position of the first token of the token's slice.
        ends: [tokens] int64, position after the last token of the slice.
        lower: [tokens] int64, first position whose window key the token may see (replay start).
        cached: [tokens] int64, positions of the request below it have their entries in shared pages
            already, which are not written.
        slots: [rows] int64, state slot of each request.
        page_table: [rows, pages] int64, page ids in position order; unused entries 0.
        slices: host ints (first, after last) of each slice in the flattened tokens.
        max_len: host bound on the tokens of any request, this step included.
        alone: the host knows that every request has one token; results never depend on it.
    """

    positions: Tensor
    rows: Tensor
    starts: Tensor
    ends: Tensor
    lower: Tensor
    cached: Tensor
    slots: Tensor
    page_table: Tensor
    slices: tuple[tuple[int, int], ...]
    max_len: int
    alone: bool = False

    @property
    def token_slots(self) -> Tensor:
        """[tokens] int64, state slot of each token's request."""
        return self.slots[self.rows]

    def with_lower(self, lower: Tensor) -> Batch:
        """The same tokens with other window bounds."""
        return replace(self, lower=lower)

    def kept(self, keep: Tensor, slices: tuple[tuple[int, int], ...]) -> Batch:
        """The sub-batch of the tokens `keep` [kept] (ascending): those not below `lower`.

        `slices` are the bounds of the remaining tokens, empty slices left out.
        """
        return replace(
            self,
            positions=self.positions[keep],
            rows=self.rows[keep],
            starts=torch.maximum(self.starts, self.lower)[keep],
            ends=self.ends[keep],
            lower=self.lower[keep],
            cached=self.cached[keep],
            slices=slices,
        )


class PageViews(NamedTuple):
    """One owner's sections of all pages, as views of the page pool (uint8).

    latents [pages, entries, record bytes]; key_codes, key_scales [pages, entries, bytes].
    """

    latents: Tensor
    key_codes: Tensor
    key_scales: Tensor

    @property
    def entries(self) -> int:
        """Entries a page."""
        return self.latents.shape[1]

    @property
    def ratio(self) -> int:
        """Tokens an entry."""
        return PAGE_TOKENS // self.entries


def gather_entries(view: Tensor, table: Tensor, ids: Tensor) -> Tensor:
    """Read entries by id.

    Args:
        view: [pages, entries a page, bytes], one section of the page pool.
        table: [tokens, pages] int64, page ids of each token's request.
        ids: [tokens, n] int64 entry ids, >= 0.

    Returns:
        [tokens, n, bytes].
    """
    entries = view.shape[1]
    pages = table.gather(1, ids // entries)
    return view[pages, ids % entries]


class RingPlaces(NamedTuple):
    """Where each token's value goes in rings of one length: slot and row, [tokens] int64."""

    slots: Tensor
    rows: Tensor


def ring_places(batch: Batch, rows: int) -> RingPlaces:
    """Row = position mod `rows` of the token's own slot.

    Of a slice longer than the ring only its last rows are written; others go to slot 0.
    """
    lasting = batch.positions >= batch.ends - rows
    return RingPlaces(torch.where(lasting, batch.token_slots, 0), batch.positions % rows)


def write_ring(ring: Tensor, places: RingPlaces, values: Tensor) -> None:
    """Write one value a token into its request's ring.

    Args:
        ring: [slots, rows, *] view, changed in place.
        places: `ring_places` of the tokens for this length.
        values: [tokens, *] of the ring's dtype.
    """
    ring[places.slots, places.rows] = values


def store_ring(ring: Tensor, batch: Batch, values: Tensor) -> None:
    """`write_ring` at the places of a batch that no other ring shares."""
    write_ring(ring, ring_places(batch, ring.shape[1]), values)


def before(batch: Batch, ring: Tensor, values: Tensor, back: Tensor) -> Tensor:
    """Values of earlier positions of the same request: from this step where it has them.

    Args:
        batch: the tokens.
        ring: [slots, rows, *] what earlier steps stored.
        values: [tokens, *] what this step computed.
        back: [tokens, n] int64, how many positions back, >= 0; the position must be >= 0.

    Returns:
        [tokens, n, *].
    """
    wanted = batch.positions.unsqueeze(1) - back
    here = torch.arange(len(values), device=values.device).unsqueeze(1) - back
    in_step = wanted >= batch.starts.unsqueeze(1)
    stored = ring[batch.token_slots.unsqueeze(1), wanted.clamp(min=0) % ring.shape[1]]
    fresh = values[here.clamp(min=0)]
    return torch.where(in_step.view(*in_step.shape, *[1] * (values.dim() - 1)), fresh, stored)


def trailing(batch: Batch, ring: Tensor, values: Tensor, tokens: Tensor, count: int) -> Tensor:
    """The last values up to some tokens: from this step where it has them.

    Args:
        batch: the tokens.
        ring: [slots, rows, *] what earlier steps stored.
        values: [tokens, *] what this step computed.
        tokens: [n] int64, which tokens.
        count: values wanted of each, positions ascending; those of positions below 0 mean nothing.

    Returns:
        [n, count, *].
    """
    back = torch.arange(count - 1, -1, -1, device=values.device)
    wanted = batch.positions[tokens].unsqueeze(1) - back
    here = tokens.unsqueeze(1) - back
    in_step = wanted >= batch.starts[tokens].unsqueeze(1)
    stored = ring[batch.token_slots[tokens].unsqueeze(1), wanted.clamp(min=0) % ring.shape[1]]
    fresh = values[here.clamp(min=0)]
    return torch.where(in_step.view(*in_step.shape, *[1] * (values.dim() - 1)), fresh, stored)
