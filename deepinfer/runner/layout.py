"""Lays the tokens of a planned step out as a batch: prefill slices first, then decoding rows.

Prefill positions are known on the host; decoding positions only on the device, so that the layout
of a step without slices can be captured. Knows nothing of sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS
from deepinfer.model.network import Tail
from deepinfer.ops.batch import Batch
from deepinfer.ops.decoding import Decoding
from deepinfer.ops.decoding.reference import decoding as decoding_reference
from deepinfer.ops.decoding.reference import history
from deepinfer.runner.rows import Parts, Rows
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
    decode: Callable[..., Decoding] = decoding_reference,
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
        decode: an implementation of `ops.decoding`.
    """
    device = rows.device
    made = decode(rows, decoding, places=places, ngram=ngram)
    total = len(made.rows)
    own = (made.rows, made.positions, made.starts, made.ends)
    more, emit = (made.lower, made.cached, made.history), torch.arange(total, device=device)
    sample_row, depth, groups = made.rows, made.depth, decoding.clone()
    verified, first = made.verified, made.first
    if slices.parts:
        own = tuple(torch.cat(pair) for pair in zip(sent["prefill"], own, strict=True))
        more = (
            rows.lower[own[0]],
            rows.cached[own[0]],
            history(rows.tokens, own[0], own[1], ngram),
        )
        ahead, ahead_rows = sent["emit"]
        zeros, before = torch.zeros_like(ahead), torch.arange(len(ahead), device=device)
        emit = torch.cat((ahead, emit + slices.kept))
        first = torch.cat((before, first + len(ahead)))
        sample_row, groups = torch.cat((ahead_rows, sample_row)), torch.cat((ahead_rows, groups))
        depth, verified = torch.cat((zeros, depth)), torch.cat((zeros, verified))
    batch = Batch(
        positions=own[1],
        rows=own[0],
        starts=own[2],
        ends=own[3],
        lower=more[0],
        cached=more[1],
        slots=torch.where(torch.arange(rows.limits.rows, device=device) > 0, rows.slot, 0),
        page_table=rows.pages[:, : -(-max_len // PAGE_TOKENS)],
        slices=(*slices.bounds, *_alone(slices.tokens, total)),
        max_len=max_len,
        alone=not places and all(end - start == 1 for start, end in slices.bounds),
    )
    tail = _tail(slices, sent, rows, batch, total)
    return StepLayout(more[2], batch, tail, emit, sample_row, depth, groups, verified, first)


def _alone(first: int, count: int) -> Bounds:
    """Decoding tokens stand alone: only the device knows their groups."""
    return tuple((i, i + 1) for i in range(first, first + count))


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
