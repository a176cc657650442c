"""Inputs of `sparse_attention`; knows no expected values."""

import torch

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("q", "records", "ids", "batch", "by")


def case(make: Maker, batch: Batch, *, ratio: int = 1) -> Case:
    """A layer of `ratio` (0: window only); the ring and the pages are full of random records.

    Every token selects random visible entries, at most `index_topk`.
    """
    arch, tokens = make.arch, len(batch.positions)
    ids = pages = None
    if ratio:
        pages = make.pages(batch, ratio)
        ids = _selection(make, (batch.positions + 1) // ratio)
    return {
        "q": make.normal(tokens, arch.num_attention_heads, arch.head_dim),
        "records": make.stored(make.records.window, tokens),
        "ring": make.ring(batch),
        "ids": ids,
        "pages": pages,
        "sink": make.wide(arch.num_attention_heads),
        "batch": batch,
        "by": make.angles(batch.positions, compressed=ratio > 0),
        "window": arch.sliding_window,
        "scale": arch.softmax_scale,
        "layout": make.records,
    }


def _selection(make: Maker, visible: torch.Tensor) -> torch.Tensor:
    """Random visible entry ids [tokens, index_topk], ascending, -1 trailing."""
    entries = max(int(visible.max()), make.arch.index_topk)
    order = make.wide(len(visible), entries)
    hidden = torch.arange(entries, device=visible.device) >= visible.unsqueeze(1)
    ids = order.masked_fill(hidden, torch.inf).argsort(dim=1)[:, : make.arch.index_topk]
    ids = torch.where(ids < visible.unsqueeze(1), ids, entries).sort(dim=1).values
    return torch.where(ids < entries, ids, -1)
