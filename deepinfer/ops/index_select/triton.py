"""The indexer in Triton: scores, one program a token and 128 entries, then the best of each row.

Dots of FP4 values are exact in bf16 products with fp32 sums; heads are added in one fixed order.
Within candidate blocks only their entries are scored. Knows nothing of latents.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.arch import PAGE_TOKENS, Record
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.index_select.reference import CandidateRule, Selection
from deepinfer.ops.index_select.scratch import SCORE_BYTES
from deepinfer.ops.portable import refuses_arch
from deepinfer.ops.triton_best import best
from deepinfer.ops.triton_fp4 import fp4_pairs

_GROWN: tl.constexpr = tl.constexpr(2.0**64)  # queries and keys are held smaller, each by 2^32
_ENTRIES = 128  # entries a program


@triton.jit
def _decoded(code_ptr, scale_ptr, used, BYTES: tl.constexpr, KIND: tl.constexpr):
    """Even and odd channels of FP4 vectors with a scale for 32 channels, both [vectors, BYTES].

    They are divided by 2^32: an exponent 94 higher makes up for the 126 that decoding leaves out.
    """
    vectors: tl.constexpr = code_ptr.shape[0]
    here = used[:, None]
    code = tl.load(code_ptr[:, None] + tl.arange(0, BYTES)[None, :], here, 0)
    byte = tl.load(scale_ptr[:, None] + tl.arange(0, BYTES // 16)[None, :], here, 127)
    # Scales above 2^33 do not occur: their vectors would be far out of the range of activations.
    size = ((tl.minimum(byte.to(tl.int32), 160) + 94) << 23).to(tl.float32, bitcast=True)
    code = tl.reshape(code, (vectors, BYTES // 16, 16))
    even, odd = fp4_pairs(code, size.to(KIND)[:, :, None])
    return tl.reshape(even, (vectors, BYTES)), tl.reshape(odd, (vectors, BYTES))


@triton.jit(do_not_specialize=["table_width"])
def _scores(
    query_ptr, weight_ptr, code_ptr, scale_ptr, position_ptr, row_ptr, table_ptr, block_ptr,
    out_ptr, best_ptr, columns, page_size, scale_page_size, table_width,
    HEADS: tl.constexpr, PADDED: tl.constexpr, BYTES: tl.constexpr, PAGE: tl.constexpr,
    RATIO: tl.constexpr, LIMIT: tl.constexpr, SIZE: tl.constexpr, PUBLISH: tl.constexpr,
    BLOCK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Scores of BLOCK columns: entries in order, or those of the token's LIMIT blocks.

    With PUBLISH also the best score of each SIZE of them, infinite where the newest entry is.
    """
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    visible = (tl.load(position_ptr + token) + 1) // RATIO
    entry = column.to(tl.int64)
    used = column < columns
    if LIMIT > 0:
        block = tl.load(block_ptr + token * LIMIT + column // SIZE, used, -1)
        used = used & (block >= 0)
        entry = block * SIZE + column % SIZE
    used = used & (entry < visible)
    score = tl.full([BLOCK], float("-inf"), tl.float32)
    if tl.max(used.to(tl.int32), 0) > 0:
        row = tl.load(row_ptr + token)
        page = tl.load(table_ptr + row * table_width + entry // PAGE, used, 0)
        code = code_ptr + page * page_size + entry % PAGE * BYTES
        scale = scale_ptr + page * scale_page_size + entry % PAGE * (BYTES // 16)
        even, odd = _decoded(code, scale, used, BYTES, KIND)
        head = tl.arange(0, PADDED)
        query = query_ptr + (token * HEADS + head) * (BYTES + BYTES // 16)
        left, right = _decoded(query, query + BYTES, head < HEADS, BYTES, KIND)
        dots = tl.dot(even, tl.trans(left))
        dots = tl.dot(odd, tl.trans(right), dots)
        weight = tl.load(weight_ptr + token * HEADS + head, head < HEADS, 0.0)
        total = tl.sum(tl.maximum(dots * _GROWN, 0.0) * weight[None, :], 1)
        score = tl.where(used, total, score)
    tl.store(out_ptr + token * columns + column, score, column < columns)
    if PUBLISH:
        best = tl.max(tl.reshape(score, (BLOCK // SIZE, SIZE)), 1)
        group = tl.program_id(1) * (BLOCK // SIZE) + tl.arange(0, BLOCK // SIZE)
        newest = (visible > 0) & (group == (visible - 1) // SIZE)
        groups = (columns + SIZE - 1) // SIZE
        best = tl.where(newest, float("inf"), best)
        tl.store(best_ptr + token * groups + group, best, group < groups)


class Scores(NamedTuple):
    """entries fp32 [tokens, columns], -inf where nothing is visible; blocks fp32 [tokens, blocks],
    the best of each block, or None if they are not published."""

    entries: Tensor
    blocks: Tensor | None


def scores(
    queries: IndexQueries,
    batch: Batch,
    pages: PageViews,
    rows: slice,
    record: Record,
    *,
    within: Tensor | None = None,
    rule: CandidateRule | None = None,
    publish: bool = False,
) -> Scores:
    """Scores of some tokens.

    Args:
        queries: of all tokens.
        batch: all tokens.
        pages: the owner's page sections.
        rows: which tokens.
        record: format of keys and queries.
        within: int64 [rows, blocks] candidate blocks of these tokens: columns are their entries,
            in this order, as many as there can be. None: all entries of all used pages.
        rule: needed with `within` or `publish`.
        publish: also score blocks.
    """
    used = -(-batch.max_len // PAGE_TOKENS)
    size = 1 if rule is None else rule.size
    limit = 0 if within is None else within.shape[1]
    columns = used * pages.entries
    if limit:  # blocks without any entry are trailing: more than there can be need no columns
        columns = min(limit, triton.cdiv(columns, size)) * size
    weights = queries.weights[rows]
    tokens, heads = weights.shape
    new = partial(torch.empty, dtype=torch.float32, device=weights.device)
    found = new((tokens, columns))
    groups = new((tokens, triton.cdiv(columns, size))) if publish else None
    _scores[(tokens, triton.cdiv(columns, _ENTRIES))](
        queries.records[rows], weights, pages.key_codes, pages.key_scales, batch.positions[rows],
        batch.rows[rows], batch.page_table, batch.positions if within is None else within, found,
        found if groups is None else groups, columns, pages.key_codes.stride(0),
        pages.key_scales.stride(0), batch.page_table.stride(0), heads,
        max(16, triton.next_power_of_2(heads)), record.code_bytes, pages.entries, pages.ratio,
        limit, size, publish, _ENTRIES, tl.bfloat16, num_warps=4, launch_pdl=True,
    )  # fmt: skip
    return Scores(found, groups)


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
    """As the reference, for FP4 records; scores that differ in the last bits may swap neighbours.

    Raises:
        ValueError: the record is another format, or the blocks do not fill 128 entries evenly.
    """
    return selected(
        scores, _best, queries, batch, pages, blocks,
        topk=topk, rule=rule, publish=publish, record=record,
    )  # fmt: skip


def _best(
    found: Tensor, count: int, _rows: slice, _unit: int, width: int, blocks: Tensor | None
) -> Tensor:
    return best(found, count, blocks, width)


def selected(
    score: Callable[..., Scores],
    choose: Callable[[Tensor, int, slice, int, int, Tensor | None], Tensor],
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
    """`index_select` with other kernels: `score`, called as `scores` is, and `choose`.

    `choose` takes scores, how many ids, which tokens, and how columns are meant: `unit` entries are
    a block and a block is `width` columns, in order or (not None) in that of the blocks, whose
    entries the ids then name.
    """
    if record.format != "fp4_ue8m0_32":
        raise ValueError(f"index_select: reads FP4 records, not {record.format}")
    if rule is not None and _ENTRIES % rule.size:
        raise ValueError(f"index_select: blocks of {rule.size} entries do not divide {_ENTRIES}")
    tokens, entries = len(batch.positions), -(-batch.max_len // PAGE_TOKENS) * pages.entries
    blocks = None if publish or blocks is None else blocks.contiguous()
    size = 1 if rule is None else rule.size
    step = max(1, SCORE_BYTES // (4 * entries))
    parts: list[Selection] = []
    for low in range(0, tokens, step):
        rows = slice(low, min(low + step, tokens))
        within = None if blocks is None else blocks[rows]
        scored = score(
            queries, batch, pages, rows, record, within=within, rule=rule, publish=publish
        )
        published = None
        if scored.blocks is not None:
            assert rule is not None, "a candidate source has a rule"
            published = choose(scored.blocks, rule.limit, rows, size, 1, None)
        unit = 1 if within is None else size
        ids = choose(scored.entries, topk, rows, unit, unit, within)
        parts.append(Selection(ids, published))
    if len(parts) == 1:
        return parts[0]
    ids = torch.cat([part.ids for part in parts])
    found = [part.blocks for part in parts if part.blocks is not None]
    return Selection(ids, torch.cat(found) if found else None)


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, quantised: bool, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    if why_not := refuses_arch(arch):
        return why_not
    return None if quantised else "takes quantised records only"
