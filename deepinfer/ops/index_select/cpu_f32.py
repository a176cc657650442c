"""The indexer on the CPU with sums in fp32. Knows nothing of latents."""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.arch import Record
from deepinfer.ops.batch import Batch, PageViews
from deepinfer.ops.index_inputs.reference import IndexQueries
from deepinfer.ops.index_select.cpu import choose
from deepinfer.ops.index_select.reference import CandidateRule, Selection


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
    """As the reference, but for the order of the sums over channels."""
    return choose(queries, batch, pages, blocks, topk, rule, publish, record, torch.float32)
