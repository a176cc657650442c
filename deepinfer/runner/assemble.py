"""Builds the batch of a step from slices of requests.

Knows nothing of why a slice is computed now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.model.network import Tail
from deepinfer.ops.batch import Batch


class RowSlice(NamedTuple):
    """Consecutive positions of one request to compute in this step.

    Attributes:
        ids: all tokens of the request up to the end of the slice (longer is fine).
        start: first position to compute.
        count: positions to compute, >= 1.
        slot: state slot, >= 1.
        pages: page ids in position order, enough for `start + count` tokens.
        decoder_start: first position that runs the decoder layers (0 = all).
        lower: first position that a window may reach.
        cached: positions below it have their entries in pages already.
    """

    ids: Sequence[int]
    start: int
    count: int
    slot: int
    pages: Sequence[int]
    decoder_start: int = 0
    lower: int = 0
    cached: int = 0


class Assembled(NamedTuple):
    """What `Network.forward` takes: history [tokens, n], the batch, and the tail if any."""

    history: Tensor
    batch: Batch
    tail: Tail | None


def assemble(
    slices: Sequence[RowSlice], ngram: int, device: torch.device, *, compact: bool = True
) -> Assembled:
    """Flatten slices into a batch.

    Args:
        slices: at most one a request, at least one.
        ngram: tokens a row of the history holds (>= 1).
        device: of the tensors.
        compact: remove prompt rows below the decoder start physically, else only mask them.
    """
    total = sum(s.count for s in slices)
    width = max(len(s.pages) for s in slices)
    positions = torch.cat([torch.arange(s.start, s.start + s.count) for s in slices])
    table = torch.zeros(len(slices), width, dtype=torch.int64)
    history = torch.full((total, ngram), -1, dtype=torch.int64)
    lower = torch.zeros(total, dtype=torch.int64)
    starts, ends, rows, window, cached = (torch.empty_like(lower) for _ in range(5))
    bounds: list[tuple[int, int]] = []
    first = 0
    for row, s in enumerate(slices):
        last = first + s.count
        part = slice(first, last)
        table[row, : len(s.pages)] = torch.tensor(s.pages, dtype=torch.int64)
        history[part] = _history(s, ngram)
        lower[part], rows[part] = max(s.decoder_start, s.lower), row
        window[part], cached[part] = s.lower, s.cached
        starts[part], ends[part] = s.start, s.start + s.count
        bounds.append((first, last))
        first = last
    batch = Batch(
        positions=positions.to(device),
        rows=rows.to(device),
        starts=starts.to(device),
        ends=ends.to(device),
        lower=window.to(device),
        cached=cached.to(device),
        slots=torch.tensor([s.slot for s in slices], device=device),
        page_table=table.to(device),
        slices=tuple(bounds),
        max_len=max(s.start + s.count for s in slices),
    )
    return Assembled(history.to(device), batch, _tail(slices, lower, positions, device, compact))


def _history(s: RowSlice, ngram: int) -> Tensor:
    """[count, ngram] token ids, newest first, -1 before the start."""
    first = s.start - (ngram - 1)
    known = torch.tensor(s.ids[max(first, 0) : s.start + s.count], dtype=torch.int64)
    padded = torch.nn.functional.pad(known, (max(-first, 0), 0), value=-1)
    return padded.unfold(0, ngram, 1).flip(1)


def _tail(
    slices: Sequence[RowSlice],
    lower: Tensor,
    positions: Tensor,
    device: torch.device,
    compact: bool,
) -> Tail | None:
    if not any(s.decoder_start for s in slices):
        return None
    keep = torch.nonzero(positions >= lower).flatten()
    if not compact or len(keep) == len(positions):
        return Tail(lower.to(device), None, ())
    bounds: list[tuple[int, int]] = []
    first = 0
    for s in slices:
        left = max(0, s.start + s.count - max(s.start, s.decoder_start))
        if left:
            bounds.append((first, first + left))
            first += left
    return Tail(lower.to(device), keep.to(device), tuple(bounds))
