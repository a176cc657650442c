"""The indexer: scores every visible entry and selects the best, with candidate blocks.

Knows nothing of latents. Ties go to the lowest id.
Source: `spec/model.md` 6.5; `spec/model-decisions.md` D29-D32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS, Record
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.formats import decode_parts, decode_record
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.products import WIDE

_SCORE_BYTES = 1 << 27  # bound on the largest temporary of one chunk of rows


class Selection(NamedTuple):
    """ids [tokens, top-k] int64 entry ids, ascending, -1 = none, trailing; `blocks` likewise the
    candidate blocks [tokens, limit] of a candidate source layer, else None."""

    ids: Tensor
    blocks: Tensor | None

    def rows(self, index: Tensor) -> Selection:
        """The selections of some tokens."""
        return Selection(self.ids[index], None if self.blocks is None else self.blocks[index])


class CandidateRule(NamedTuple):
    """Keep the `limit` best blocks of `size` entries (config keys `candidate_*`)."""

    limit: int
    size: int


def head_scores(queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """score(t, j) = sum over heads of w * relu(q . k), heads ascending in fp32.

    Args:
        queries: [tokens, heads, dim] fp32.
        weights: [tokens, heads] fp32.
        keys: [entries, dim] fp32 of all tokens, or [tokens, entries, dim], each token's own.

    Returns:
        [tokens, entries] fp32.
    """
    total = torch.zeros(len(queries), keys.shape[-2], device=keys.device)
    wide_keys = keys.to(WIDE).mT
    if keys.dim() == 3:
        every = (queries.to(WIDE) @ wide_keys).to(torch.float32).relu().unbind(1)
    else:  # one head at a time: all of them would take much memory
        heads = queries.to(WIDE).unbind(1)
        every = ((query @ wide_keys).to(torch.float32).relu() for query in heads)
    for head, dots in enumerate(every):
        total += weights[:, head, None] * dots
    return total


def _best(scores: Tensor, count: int) -> Tensor:
    """Ids of the `count` best finite scores a row, ascending, -1 trailing; ties to the lowest."""
    ranked = torch.sort(scores, dim=-1, descending=True, stable=True)
    ids = ranked.indices[:, :count]
    ids = torch.where(ranked.values[:, :count] == -torch.inf, scores.shape[1], ids)
    ids = ids.sort(-1).values
    ids = torch.where(ids == scores.shape[1], -1, ids)
    return torch.nn.functional.pad(ids, (0, count - ids.shape[1]), value=-1)


def candidate_blocks(scores: Tensor, visible: Tensor, rule: CandidateRule) -> Tensor:
    """Best blocks by their best entry; the newest visible entry's block is always among them.

    Args:
        scores: [tokens, entries] fp32, -inf where not visible.
        visible: [tokens] int64, number of visible entries.
        rule: how many blocks of what size.

    Returns:
        [tokens, limit] int64 block ids, ascending, -1 = none, trailing.
    """
    pad = -scores.shape[1] % rule.size
    padded = torch.nn.functional.pad(scores, (0, pad), value=-torch.inf)
    best = padded.unflatten(1, (-1, rule.size)).amax(-1)
    newest = ((visible - 1) // rule.size).clamp(min=0).unsqueeze(1)
    forced = torch.where(visible.unsqueeze(1) > 0, torch.inf, -torch.inf)
    best = best.scatter(1, newest, forced.to(best.dtype))
    return _best(best, rule.limit)


def block_mask(blocks: Tensor, rule: CandidateRule, entries: int) -> Tensor:
    """Entries within blocks: [tokens, limit] ids (-1 = none) -> bool [tokens, entries]."""
    count = -(-entries // rule.size)
    marked = torch.zeros(len(blocks), count + 1, dtype=torch.bool, device=blocks.device)
    marked.scatter_(1, torch.where(blocks < 0, count, blocks), True)
    return marked[:, :count].repeat_interleave(rule.size, 1)[:, :entries]


def select(
    scores: Tensor,
    visible: Tensor,
    topk: int,
    *,
    blocks: Tensor | None,
    rule: CandidateRule | None,
    publish: bool,
) -> Selection:
    """Choose entries from scores [tokens, entries]; see `index_select` for the rest."""
    entries = scores.shape[1]
    column = torch.arange(entries, device=scores.device)
    scores = scores.masked_fill(column >= visible.unsqueeze(1), -torch.inf)
    published = None
    if publish:
        assert rule is not None, "a candidate source has a rule"
        published = candidate_blocks(scores, visible, rule)
    elif blocks is not None:
        assert rule is not None, "candidates come with their rule"
        scores = scores.masked_fill(~block_mask(blocks, rule, entries), -torch.inf)
    return Selection(_best(scores, topk), published)


def index_select(
    queries: IndexQueries,
    batch: Batch,
    pages: PageViews,
    blocks: Tensor | None,
    *,
    topk: int,
    rule: CandidateRule | None,
    publish: bool,
    record: Record,
) -> Selection:
    """Select at most `topk` entries for every token.

    Entry j is visible to position p iff j < floor((p + 1) / ratio). A token never selects a masked
    entry; with fewer visible than `topk` it selects all of them.

    Args:
        queries: stored queries and head weights of the tokens.
        batch: the tokens.
        pages: the owner's page sections; entries completed in this step are already stored.
        blocks: [tokens, limit] candidate blocks to choose within, or None for all entries.
        topk: config key `index_topk`.
        rule: candidate rule; needed with `blocks` or `publish`.
        publish: also return this layer's candidate blocks (its own selection is not restricted).
        record: format of index keys and queries.
    """
    used = -(-batch.max_len // PAGE_TOKENS)
    entries, width = used * pages.entries, record.width + queries.weights.shape[1]
    visible = (batch.positions + 1) // pages.ratio
    parts: list[Selection] = []
    for first, last, lone in _runs(batch.slices):
        # One request's keys serve all tokens of its slice; lone tokens bring their own.
        tables = batch.page_table[batch.rows[first : last if lone else first + 1], :used]
        if not lone:
            keys = _keys(pages, tables[0], record)
        step = max(1, _SCORE_BYTES // (entries * 8 * (width if lone else 1)))
        for low in range(first, last, step):
            rows = slice(low, min(low + step, last))
            if lone:
                keys = _keys(pages, tables[low - first : low - first + step], record)
            decoded = decode_record(queries.records[rows], record)
            scores = head_scores(decoded, queries.weights[rows], keys)
            within = None if blocks is None else blocks[rows]
            chosen = select(scores, visible[rows], topk, blocks=within, rule=rule, publish=publish)
            parts.append(chosen)
    ids = torch.cat([part.ids for part in parts])
    published = [part.blocks for part in parts if part.blocks is not None]
    return Selection(ids, torch.cat(published) if published else None)


def _keys(pages: PageViews, table: Tensor, record: Record) -> Tensor:
    """Decoded index keys of the pages in `table` [*, pages]: fp32 [*, entries, dim]."""
    codes, scales = pages.key_codes[table], pages.key_scales[table]
    return decode_parts(codes.flatten(-3, -2), scales.flatten(-3, -2), record.format)


def _runs(slices: Sequence[tuple[int, int]]) -> list[tuple[int, int, bool]]:
    """Slices, with neighbouring slices of one token joined; True marks these."""
    found: list[tuple[int, int, bool]] = []
    for first, last in slices:
        lone = last - first == 1
        if lone and found and found[-1][2]:
            found[-1] = (found[-1][0], last, True)
        else:
            found.append((first, last, lone))
    return found
