"""Index scores in Triton, one program a token and 128 entries; the choice is the reference's.

Dots of FP4 values are exact in bf16 products with fp32 sums; heads are added in one fixed order.
Knows nothing of latents.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.arch import PAGE_TOKENS, Record
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.index_select.reference import CandidateRule, Selection, select
from deepinfer.ops.triton_rows import fp4_value

_ENTRIES = 128  # entries a program
_SCORE_BYTES = 1 << 28  # bound on the scores of one chunk of rows; sorting takes a few times more


@triton.jit
def _decoded(code_ptr, scale_ptr, used, BYTES: tl.constexpr, KIND: tl.constexpr):
    """Even and odd channels of FP4 vectors with a scale for 32 channels, both [vectors, BYTES]."""
    vectors: tl.constexpr = code_ptr.shape[0]
    here = used[:, None]
    code = tl.load(code_ptr[:, None] + tl.arange(0, BYTES)[None, :], here, 0).to(tl.int32)
    byte = tl.load(scale_ptr[:, None] + tl.arange(0, BYTES // 16)[None, :], here, 127)
    size = (byte.to(tl.int32) << 23).to(tl.float32, bitcast=True)[:, :, None]
    code = tl.reshape(code, (vectors, BYTES // 16, 16))
    even = tl.reshape(fp4_value(code & 15) * size, (vectors, BYTES))
    odd = tl.reshape(fp4_value(code >> 4) * size, (vectors, BYTES))
    return even.to(KIND), odd.to(KIND)


@triton.jit(do_not_specialize=["entries", "page_size", "scale_page_size", "table_width"])
def _scores(
    query_ptr, weight_ptr, code_ptr, scale_ptr, position_ptr, row_ptr, table_ptr, out_ptr,
    entries, page_size, scale_page_size, table_width,
    HEADS: tl.constexpr, PADDED: tl.constexpr, BYTES: tl.constexpr, PAGE: tl.constexpr,
    RATIO: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    gdc_wait()
    gdc_launch_dependents()
    token = tl.program_id(0).to(tl.int64)
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    visible = (tl.load(position_ptr + token) + 1) // RATIO
    used = (entry < visible) & (entry < entries)
    score = tl.full([BLOCK], float("-inf"), tl.float32)
    if tl.program_id(1) * BLOCK < visible:
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
        total = tl.sum(tl.maximum(dots, 0.0) * weight[None, :], 1)
        score = tl.where(used, total, score)
    tl.store(out_ptr + token * entries + entry, score, entry < entries)


def scores(
    queries: IndexQueries, batch: Batch, pages: PageViews, rows: slice, record: Record
) -> Tensor:
    """Scores of some tokens, fp32 [rows, entries of all used pages], -inf where not visible."""
    used = -(-batch.max_len // PAGE_TOKENS)
    entries, ratio = used * pages.entries, pages.ratio
    records, weights = queries.records[rows], queries.weights[rows]
    tokens, heads = weights.shape
    found = torch.empty((tokens, entries), dtype=torch.float32, device=weights.device)
    _scores[(tokens, triton.cdiv(entries, _ENTRIES))](
        records, weights, pages.key_codes, pages.key_scales, batch.positions[rows],
        batch.rows[rows], batch.page_table, found, entries, pages.key_codes.stride(0),
        pages.key_scales.stride(0), batch.page_table.stride(0), heads,
        max(16, triton.next_power_of_2(heads)), record.code_bytes, pages.entries, ratio, _ENTRIES,
        tl.bfloat16, num_warps=4, launch_pdl=True,
    )  # fmt: skip
    return found


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
        ValueError: the record is another format.
    """
    if record.format != "fp4_ue8m0_32":
        raise ValueError(f"index_select: reads FP4 records, not {record.format}")
    tokens = len(batch.positions)
    visible = (batch.positions + 1) // pages.ratio
    entries = -(-batch.max_len // PAGE_TOKENS) * pages.entries
    step = max(1, _SCORE_BYTES // (4 * entries))
    parts: list[Selection] = []
    for low in range(0, tokens, step):
        rows = slice(low, min(low + step, tokens))
        parts.append(
            select(
                scores(queries, batch, pages, rows, record),
                visible[rows],
                topk,
                blocks=None if blocks is None else blocks[rows],
                rule=rule,
                publish=publish,
            )
        )
    if len(parts) == 1:
        return parts[0]
    ids = torch.cat([part.ids for part in parts])
    published = [part.blocks for part in parts if part.blocks is not None]
    return Selection(ids, torch.cat(published) if published else None)


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, quantised: bool, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    if arch not in ("sm90", "sm100"):
        return f"written for sm90 and sm100, not {arch}"
    return None if quantised else "takes quantised records only"
