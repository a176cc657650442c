"""Lays the tokens of a planned step out as a batch: prefill slices first, then decoding rows.

Prefill positions are known on the host; decoding positions only on the device. Knows nothing of
sampling.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS
from deepinfer.model.network import Tail
from deepinfer.ops.batch import Batch
from deepinfer.runner.rows import Rows, share_drafts
from deepinfer.step import Prefill


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
        groups: [groups] int64 table rows that generate, in order of `emit`.
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
    prefill: Sequence[Prefill],
    decoder_starts: Mapping[int, int],
    decoding: Tensor,
    budget: int,
    max_len: int,
    ngram: int,
) -> StepLayout:
    """Lay a step out.

    Args:
        rows: row state.
        prefill: slices of the plan.
        decoder_starts: decoder start of every row with a slice (host copy).
        decoding: [n] int64 table rows that decode, ascending.
        budget: drafts verified over all decoding rows; tokens that find no draft are padding.
        max_len: bound on any row's tokens after the step.
        ngram: tokens a row of the history holds.
    """
    device = rows.device
    known = _prefill_tokens(prefill)
    drafts = share_drafts(decoding, rows, budget)
    total = len(decoding) + budget
    sizes = drafts + 1
    ends = sizes.cumsum(0)
    place = torch.arange(total, device=device)
    group = torch.searchsorted(ends, place, right=True)
    padding = group >= len(decoding)
    group = group.clamp(max=max(len(decoding) - 1, 0))
    depth = place - (ends - sizes)[group] if len(decoding) else place
    row = torch.where(padding, 0, decoding[group]) if len(decoding) else place
    depth = torch.where(padding, 0, depth)
    start = torch.where(padding, 0, rows.length[row] - 1)
    end = torch.where(padding, 1, start + (sizes[group] if len(decoding) else 1))
    host = {k: torch.tensor(v, dtype=torch.int64).to(device) for k, v in known.items()}
    batch_rows = torch.cat((host["row"], row))
    batch = Batch(
        positions=torch.cat((host["position"], start + depth)),
        rows=batch_rows,
        starts=torch.cat((host["start"], start)),
        ends=torch.cat((host["end"], end)),
        lower=torch.zeros_like(batch_rows),
        slots=torch.where(torch.arange(rows.limits.rows, device=device) > 0, rows.slot, 0),
        page_table=rows.pages[:, : -(-max_len // PAGE_TOKENS)],
        slices=_bounds(prefill, total),
        max_len=max_len,
    )
    tail, kept_ends, kept = _tail(prefill, decoder_starts, rows, batch, total)
    emitting = [i for i, item in enumerate(prefill) if item.emits]
    emit = torch.tensor([kept_ends[i] - 1 for i in emitting], dtype=torch.int64).to(device)
    emit_rows = torch.tensor([prefill[i].row for i in emitting], dtype=torch.int64).to(device)
    none = torch.zeros_like(emit_rows)
    first = torch.cat((torch.arange(len(emitting), device=device), ends - sizes + len(emitting)))
    return StepLayout(
        history=_history(rows, batch, ngram),
        batch=batch,
        tail=tail,
        emit=torch.cat((emit, kept + place)),
        sample_row=torch.cat((emit_rows, row)),
        depth=torch.cat((none, depth)),
        groups=torch.cat((emit_rows, decoding)),
        verified=torch.cat((none, drafts)),
        first=first,
    )


def _prefill_tokens(prefill: Sequence[Prefill]) -> dict[str, list[int]]:
    columns: dict[str, list[int]] = {"row": [], "position": [], "start": [], "end": []}
    for item in prefill:
        columns["row"] += [item.row] * item.length
        columns["position"] += range(item.start, item.start + item.length)
        columns["start"] += [item.start] * item.length
        columns["end"] += [item.start + item.length] * item.length
    return columns


def _bounds(prefill: Sequence[Prefill], decoding: int) -> tuple[tuple[int, int], ...]:
    """Host bounds of slices; decoding tokens stand alone: only the device knows their groups."""
    bounds: list[tuple[int, int]] = []
    first = 0
    for item in prefill:
        bounds.append((first, first + item.length))
        first += item.length
    return (*bounds, *((i, i + 1) for i in range(first, first + decoding)))


def _history(rows: Rows, batch: Batch, ngram: int) -> Tensor:
    """[tokens, ngram] ids at and before each position, -1 before the start."""
    back = batch.positions.unsqueeze(1) - torch.arange(ngram, device=rows.device)
    ids = rows.tokens[batch.rows.unsqueeze(1), back.clamp(min=0)]
    return torch.where(back >= 0, ids, -1)


def _tail(
    prefill: Sequence[Prefill],
    decoder_starts: Mapping[int, int],
    rows: Rows,
    batch: Batch,
    decoding: int,
) -> tuple[Tail | None, list[int], int]:
    """The tail, where each slice ends among the kept rows, and how many prefill rows are kept."""
    keep: list[int] = []
    bounds: list[tuple[int, int]] = []
    ends: list[int] = []
    first = 0
    for item in prefill:
        dropped = min(max(decoder_starts[item.row] - item.start, 0), item.length)
        if dropped < item.length:
            bounds.append((len(keep), len(keep) + item.length - dropped))
        keep += range(first + dropped, first + item.length)
        ends.append(len(keep))
        first += item.length
    if not any(decoder_starts[item.row] for item in prefill):
        return None, ends, len(keep)
    lower = rows.decoder_start[batch.rows]
    if len(keep) == first:
        return Tail(lower, None, ()), ends, len(keep)
    bounds += [(len(keep) + i, len(keep) + i + 1) for i in range(decoding)]
    kept = len(keep)
    keep += range(first, first + decoding)
    index = torch.tensor(keep, dtype=torch.int64).to(rows.device)
    return Tail(lower, index, tuple(bounds)), ends, kept
