"""Suites of the indexer: scores of index keys, and the best of a row alone.

Rows of one request read the same keys: `64 x 4` are 256 rows of 64 requests, `256 x 1` as many of
256 requests. Four rows a request need more time for products than for the read, so that is their
floor. Source: performance.md 3.6; 4, row 7. Knows nothing of marks.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS, Arch, PageLayout, Records
from deepinfer.bench.cases import random_bytes, random_scales
from deepinfer.bench.measure import Ceilings, Record, graph_us
from deepinfer.bench.slices import slice_arch
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.gluon_best import best
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.index_select import hopper

# Requests, rows of each, entries of each.
SCORES = (
    *((64, 1, entries) for entries in (16_384, 65_536, 131_072)),
    *((64, 4, entries) for entries in (16_384, 65_536, 131_072)),
    *((256, 1, entries) for entries in (16_384, 65_536)),
)
ROWS, COLUMNS, COUNT = (6, 64, 256, 4096), (16_384, 65_536, 262_144, 1_048_576), 512
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SCALES = (124, 130)  # scale bytes of vectors of ordinary size
_LARGE = 1 << 30  # bytes of scores from which a graph holds one call
Found = Iterator[tuple[Record, bool]]


def bench_index(device: torch.device, top: Ceilings, _sweep: bool) -> Found:
    """Scores against the read of the keys, then top 512 against torch and a copy."""
    arch = slice_arch("ep64")
    for requests, each, entries in SCORES:
        batch, pages = world(arch, requests, each, entries, device)
        record = Records.of(arch, quantised=True).index_key
        tokens = requests * each
        queries = IndexQueries(
            torch.cat(
                (
                    random_bytes((tokens, arch.index_n_heads, record.code_bytes), device),
                    random_scales((tokens, arch.index_n_heads, record.scale_bytes), SCALES, device),
                ),
                dim=-1,
            ),
            torch.randn(tokens, arch.index_n_heads, device=device) * arch.index_scale,
        )
        call = partial(hopper.scores, queries, batch, pages, slice(None), record)
        read = requests * entries * record.bytes / top.read * 1e6
        flop = 2.0 * tokens * entries * arch.index_n_heads * arch.index_head_dim
        product = flop / top.matmul * 1e6
        ours, spread = graph_us([call], 2)
        name = f"index scores {entries} T={requests} x {each}"
        floor = (read, "keys read") if read > product else (product, "bf16 matmul")
        note = f"{read / ours:.2f} of the read"
        yield Record(name, "", ours, *floor, spread, note=note), False
        del batch, pages
    for kind, dtype in TYPES.items():
        yield from _tops(kind, dtype, device, top)


def world(
    arch: Arch, requests: int, each: int, entries: int, device: torch.device
) -> tuple[Batch, PageViews]:
    """Requests with `entries` index keys of the first owner of ratio 1, of which the last `each`
    tokens are computed; random codes in pages of real size and shuffled order."""
    records = Records.of(arch, quantised=True)
    layout, key = PageLayout.of(arch, records), records.index_key
    section = next(owner for owner in layout.owners if owner.ratio == 1)
    pages = entries // PAGE_TOKENS
    pool = torch.empty(requests * pages + 1, layout.bytes, dtype=torch.uint8, device=device)

    def view(first: int, width: int) -> Tensor:
        part = pool[:, first : first + section.entries * width]
        return part.unflatten(1, (section.entries, width))

    views = PageViews(
        view(section.latents, records.latent.bytes),
        view(section.key_codes, key.code_bytes),
        view(section.key_scales, key.scale_bytes),
    )
    views.key_codes[:] = random_bytes(tuple(views.key_codes.shape), device)
    views.key_scales[:] = random_scales(tuple(views.key_scales.shape), SCALES, device)
    table = 1 + torch.randperm(requests * pages, device=device).view(requests, pages)
    start = torch.full((requests * each,), entries - each, device=device)
    alone = torch.zeros_like(start)
    batch = Batch(
        positions=start + torch.arange(each, device=device).repeat(requests),
        rows=1 + torch.arange(requests, device=device).repeat_interleave(each),
        starts=start,
        ends=start + each,
        lower=alone,
        cached=alone,
        slots=torch.arange(requests + 1, device=device),
        page_table=torch.cat((table.new_zeros(1, pages), table)),
        slices=tuple((i * each, (i + 1) * each) for i in range(requests)),
        max_len=entries,
        alone=each == 1,
    )
    return batch, views


def _tops(kind: str, dtype: torch.dtype, device: torch.device, top: Ceilings) -> Found:
    """Every size alone, then geometric means of all of them."""
    found: list[Record] = []
    for rows in ROWS:
        for columns in COLUMNS:
            scores = torch.randn(rows, columns, device=device, dtype=dtype)
            least = 1 if scores.nbytes > _LARGE else 8
            # A copy writes as much as it reads; here next to nothing is written.
            floor = scores.nbytes / top.copy * 1e6
            ours, spread = graph_us([partial(best, scores, COUNT)], least)
            peer, _ = graph_us([partial(torch.topk, scores, COUNT, sorted=False)], least)
            name = f"top {COUNT} {kind} {rows} x {columns}"
            record = Record(name, "", ours, floor, "copy rate", spread, peer, "torch.topk")
            found.append(record)
            yield record, False
            del scores
    mean = statistics.geometric_mean
    yield (
        Record(
            f"top {COUNT} {kind}, geometric mean",
            "",
            mean([r.ours_us for r in found]),
            mean([r.floor_us for r in found]),
            "copy rate",
            max(r.spread for r in found),
            mean([r.peer_us or 0.0 for r in found]),
            "torch.topk",
        ),
        False,
    )
