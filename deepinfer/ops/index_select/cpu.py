"""The indexer on the CPU: all heads in one product, selection by integer rank.

Short slices are scored together, each token against its own keys. Bits equal the reference's.
Knows nothing of latents.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from deepinfer.arch import Record
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.cpu_codes import decode, decode_records
from deepinfer.ops.cpu_rows import TILE
from deepinfer.ops.cpu_tiles import runs
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.index_select.reference import CandidateRule, Selection, block_mask
from deepinfer.ops.products import WIDE

_HEADS = 8  # rows of queries of a token are padded to a multiple of it
_LONG = 8  # tokens from which a slice is scored by itself
_LOWEST = -0x7F800001  # rank of minus infinity, see `_best`
_BYTES = 1 << 22  # bound on the widened keys or scores of one chunk of tokens


def _scores(queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Sum over heads, ascending, of w * relu(q . k): fp32 [tokens, entries].

    Args:
        queries: [tokens, heads, dim].
        weights: [tokens, heads] fp32.
        keys: [entries, dim] for all tokens or [tokens, entries, dim], in the dtype of `queries`.
    """
    heads = weights.shape[1]
    queries = pad(queries, (0, 0, 0, -heads % _HEADS))
    if keys.dim() == 2:
        dots = (queries.flatten(0, 1) @ keys.mT).unflatten(0, queries.shape[:2])
    else:
        dots = queries @ keys.mT
    dots = dots[:, :heads].to(torch.float32).relu_().mul_(weights.unsqueeze(-1))
    total = torch.zeros_like(dots[:, 0])
    for head in range(heads):
        total += dots[:, head]
    return total


def _best(scores: Tensor, count: int) -> Tensor:
    """Ids of the `count` best finite scores a row, ascending, -1 trailing; ties to the lowest.

    Score and id are joined in one integer, larger for a better score or a lower id, so that an
    unstable partial sort serves. Scores hold no negative zero.
    """
    entries = scores.shape[1]
    bits = scores.contiguous().view(torch.int32)
    rank = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(torch.int64)
    joined = (rank << 32) | torch.arange(entries - 1, -1, -1)
    best = joined.topk(min(count, entries), dim=-1, sorted=False).values
    ids = (entries - 1) - (best & 0xFFFFFFFF)
    ids = torch.where(best >> 32 <= _LOWEST, entries, ids).sort(-1).values
    ids = torch.where(ids == entries, -1, ids)
    return pad(ids, (0, count - ids.shape[1]), value=-1)


def _candidates(scores: Tensor, visible: Tensor, rule: CandidateRule) -> Tensor:
    """As `candidate_blocks` of the reference."""
    padded = pad(scores, (0, -scores.shape[1] % rule.size), value=-torch.inf)
    best = padded.unflatten(1, (-1, rule.size)).amax(-1)
    newest = ((visible - 1) // rule.size).clamp(min=0).unsqueeze(1)
    forced = torch.where(visible.unsqueeze(1) > 0, torch.inf, -torch.inf)
    return _best(best.scatter(1, newest, forced), rule.limit)


def _select(
    scores: Tensor,
    visible: Tensor,
    topk: int,
    blocks: Tensor | None,
    rule: CandidateRule | None,
    publish: bool,
) -> Selection:
    """As `select` of the reference."""
    entries = scores.shape[1]
    scores = scores.masked_fill_(torch.arange(entries) >= visible.unsqueeze(1), -torch.inf)
    published = None
    if publish:
        assert rule is not None, "a candidate source has a rule"
        published = _candidates(scores, visible, rule)
    elif blocks is not None:
        assert rule is not None, "candidates come with their rule"
        # Entries end at the last visible one here: blocks behind it hold nothing to choose.
        blocks = torch.where(blocks * rule.size < entries, blocks, -1)
        scores = scores.masked_fill_(~block_mask(blocks, rule, entries), -torch.inf)
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
    """As the reference."""
    return choose(queries, batch, pages, blocks, topk, rule, publish, record, WIDE)


def choose(
    queries: IndexQueries,
    batch: Batch,
    pages: PageViews,
    blocks: Tensor | None,
    topk: int,
    rule: CandidateRule | None,
    publish: bool,
    record: Record,
    dtype: torch.dtype,
) -> Selection:
    """As the reference, with products in `dtype`, float64 or fp32."""
    visible = (batch.positions + 1) // pages.ratio
    heads, width = queries.weights.shape[1], dtype.itemsize
    parts: list[Selection] = []

    def take(rows: slice, keys: Tensor) -> None:
        decoded = decode_records(queries.records[rows], record).to(dtype)
        scores = _scores(decoded, queries.weights[rows], keys)
        within = None if blocks is None else blocks[rows]
        parts.append(_select(scores, visible[rows], topk, within, rule, publish))

    for first, last, long in runs(batch.slices, _LONG):
        most = _columns(visible[first:last])
        used = -(-most // pages.entries)
        if long:
            table = batch.page_table[batch.rows[first], :used]
            keys = _keys(pages, table, record)[:most].to(dtype)
            step = max(1, _BYTES // (heads * most * width))
            for low in range(first, last, step):
                rows = slice(low, min(low + step, last))
                take(rows, keys[: _columns(visible[rows])])
            continue
        table = batch.page_table[batch.rows[first:last], :used]
        step = max(1, _BYTES // (most * record.width * width))
        for low in range(0, last - first, step):
            some = table[low : low + step]
            keys = _keys(pages, some.flatten(), record).unflatten(0, (len(some), -1))
            take(slice(first + low, first + low + len(some)), keys[:, :most].to(dtype))
    ids = torch.cat([part.ids for part in parts])
    published = [part.blocks for part in parts if part.blocks is not None]
    return Selection(ids, torch.cat(published) if published else None)


def _columns(visible: Tensor) -> int:
    """Entries to score: all that a token sees, and whole tiles of columns."""
    return -(-max(1, int(visible.max())) // TILE) * TILE


def _keys(pages: PageViews, table: Tensor, record: Record) -> Tensor:
    """Decoded keys of pages [n]: fp32 [n * entries, dim]."""
    codes, scales = pages.key_codes[table], pages.key_scales[table]
    return decode(codes.flatten(0, 1), scales.flatten(0, 1), record.format)
