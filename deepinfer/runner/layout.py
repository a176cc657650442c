"""Lays the tokens of a planned step out as a batch: prefill slices first, then decoding rows.

Prefill positions are known on the host; decoding positions only on the device, so that the layout
of a step without slices can be captured. Knows nothing of sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS
from deepinfer.model.network import Tail
from deepinfer.ops.batch import Batch
from deepinfer.runner.rows import Parts, Rows, share_drafts
from deepinfer.step import Prefill

Bounds = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Slices:
    """The prefill slices of a step, as the host lays them out.

    Attributes:
        parts: what must be sent: `prefill` [4, tokens] row, position, start and end of each token,
            `emit` [2, emitting] kept token and row of each slice that generates, `keep` the tokens
            that run the decoder layers, if not all do. Empty without slices.
        bounds: (first, after last) token of each slice.
        kept_bounds: the same among the kept tokens, slices without any left out.
        tokens, kept: numbers of tokens.
        replay: a slice belongs to a row with a decoder start.
    """

    parts: Parts = field(default_factory=dict)
    bounds: Bounds = ()
    kept_bounds: Bounds = ()
    tokens: int = 0
    kept: int = 0
    replay: bool = False

    @classmethod
    def of(
        cls, prefill: Sequence[Prefill], decoder_starts: Mapping[int, int], *, compact: bool = True
    ) -> Slices:
        """Lay slices out.

        Args:
            prefill: slices of the plan.
            decoder_starts: decoder start of every row with a slice.
            compact: remove tokens below it from the decoder layers, else only mask them.
        """
        if not prefill:
            return cls()
        columns: list[np.ndarray] = []
        keep: list[np.ndarray] = []
        emit: list[tuple[int, int]] = []
        bounds: list[tuple[int, int]] = []
        kept_bounds: list[tuple[int, int]] = []
        first = kept = 0
        for row, start, length, emits in prefill:
            end, last = start + length, first + length
            part = np.empty((4, length), np.int64)
            part[0], part[1], part[2], part[3] = row, np.arange(start, end), start, end
            columns.append(part)
            bounds.append((first, last))
            dropped = min(max(decoder_starts[row] - start, 0), length) if compact else 0
            keep.append(np.arange(first + dropped, last, dtype=np.int64))
            if dropped < length:
                kept_bounds.append((kept, kept + length - dropped))
            first, kept = last, kept + length - dropped
            if emits:
                emit.append((kept - 1, row))
        parts = {
            "prefill": np.concatenate(columns, 1),
            "emit": np.array(emit, np.int64).reshape(-1, 2).T.copy(),
        }
        if kept < first:
            parts["keep"] = np.concatenate(keep)
        replay = any(decoder_starts[item.row] for item in prefill)
        return cls(parts, tuple(bounds), tuple(kept_bounds), first, kept, replay)

    def padded(self, tokens: int) -> Slices:
        """The same work in a number of tokens that a captured step has.

        Padding behind them is of row 0. Only the device knows slices then, as it does for decoding
        rows, and rows below a decoder start are only masked: `self` was made without `compact`.
        """
        assert self.kept == self.tokens <= tokens, "captured steps keep all tokens"
        padding = np.zeros((4, tokens - self.tokens), np.int64)
        padding[3] = 1  # the end of a slice at position 0
        parts = {**self.parts, "prefill": np.concatenate((self.parts["prefill"], padding), 1)}
        return Slices(parts, _alone(0, tokens), (), tokens, tokens, replay=True)


@dataclass(frozen=True)
class StepLayout:
    """A batch and what becomes of its rows.

    Attributes:
        history: [tokens, n] int64 token ids, newest first, -1 before the start.
        batch: the tokens.
        tail: bounded decoder replay of prefill rows, or None.
        emit: [samples] int64, rows of `Forward.hidden` that generate: emitting prefill slices in
            plan order, then decoding rows with their drafts, grouped by row; padding last.
        sample_row: [samples] int64, table row of each; 0 for padding.
        depth: [samples] int64, how many drafts of the row stand before it.
        groups: [groups] int64 table rows that generate, in order of `emit`; 0 for padding.
        verified: [groups] int64, drafts verified by each.
        first: [groups] int64, sample that starts each group.
    """

    history: Tensor
    batch: Batch
    tail: Tail | None
    emit: Tensor
    sample_row: Tensor
    depth: Tensor
    groups: Tensor
    verified: Tensor
    first: Tensor


def lay_out(
    rows: Rows,
    slices: Slices,
    sent: Mapping[str, Tensor],
    decoding: Tensor,
    places: int,
    max_len: int,
    ngram: int,
) -> StepLayout:
    """Lay a step out.

    Args:
        rows: row state.
        slices: of the plan.
        sent: `slices.parts` on the device.
        decoding: [n] int64 table rows that decode, ascending; 0 behind them is padding.
        places: tokens for drafts, at least the step's budget; those without a draft are padding.
        max_len: bound on any row's tokens after the step.
        ngram: tokens a row of the history holds.
    """
    device, count = rows.device, len(decoding)
    total = count + places if count else 0
    drafts = share_drafts(decoding, rows)
    sizes = drafts + 1
    ends = sizes.cumsum(0)
    place = torch.arange(total, device=device)
    group = torch.searchsorted(ends, place, right=True)
    padding = group >= count
    group = group.clamp(max=max(count - 1, 0))
    row = torch.where(padding, 0, decoding[group])
    depth = torch.where(padding, 0, place - (ends - sizes)[group])
    start = torch.where(padding, 0, rows.length[row] - 1)
    end = torch.where(padding, 1, start + sizes[group])
    own = (row, start + depth, start, end)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    emit, emit_rows = (none, none) if not slices.parts else sent["emit"]
    if slices.parts:
        own = tuple(torch.cat(pair) for pair in zip(sent["prefill"], own, strict=True))
    batch = Batch(
        positions=own[1],
        rows=own[0],
        starts=own[2],
        ends=own[3],
        lower=rows.lower[own[0]],
        cached=rows.cached[own[0]],
        slots=torch.where(torch.arange(rows.limits.rows, device=device) > 0, rows.slot, 0),
        page_table=rows.pages[:, : -(-max_len // PAGE_TOKENS)],
        slices=(*slices.bounds, *_alone(slices.tokens, total)),
        max_len=max_len,
    )
    first = torch.arange(len(emit), device=device)
    zeros = torch.zeros_like(emit_rows)
    return StepLayout(
        history=_history(rows, batch, ngram),
        batch=batch,
        tail=_tail(slices, sent, rows, batch, total),
        emit=torch.cat((emit, place + slices.kept)),
        sample_row=torch.cat((emit_rows, row)),
        depth=torch.cat((zeros, depth)),
        groups=torch.cat((emit_rows, decoding)),
        verified=torch.cat((zeros, drafts)),
        first=torch.cat((first, ends - sizes + len(emit))),
    )


def _alone(first: int, count: int) -> Bounds:
    """Decoding tokens stand alone: only the device knows their groups."""
    return tuple((i, i + 1) for i in range(first, first + count))


def _history(rows: Rows, batch: Batch, ngram: int) -> Tensor:
    """[tokens, ngram] ids at and before each position, -1 before the start."""
    back = batch.positions.unsqueeze(1) - torch.arange(ngram, device=rows.device)
    ids = rows.tokens[batch.rows.unsqueeze(1), back.clamp(min=0)]
    return torch.where(back >= 0, ids, -1)


def _tail(
    slices: Slices, sent: Mapping[str, Tensor], rows: Rows, batch: Batch, decoding: int
) -> Tail | None:
    if not slices.replay:
        return None
    lower = torch.maximum(rows.decoder_start[batch.rows], batch.lower)
    if slices.kept == slices.tokens:
        return Tail(lower, None, ())
    place = torch.arange(slices.tokens, slices.tokens + decoding, device=rows.device)
    bounds = (*slices.kept_bounds, *_alone(slices.kept, decoding))
    return Tail(lower, torch.cat((sent["keep"], place)), bounds)
