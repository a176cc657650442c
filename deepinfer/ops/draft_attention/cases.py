"""Inputs of `draft_attention`; knows no expected values."""

import torch

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("q", "records", "slots", "anchors", "lower")


def case(make: Maker, batch: Batch) -> Case:
    """One draft block after each token of the batch: the tokens are the anchors."""
    arch = make.arch
    assert arch.draft is not None, "drafts need an architecture with a drafter"
    requests, block = len(batch.positions), arch.draft.block_size
    ahead = torch.arange(1, block + 1, device=make.device)
    positions = (batch.positions.unsqueeze(1) + ahead).flatten()
    return {
        "q": make.normal(requests, block, arch.num_attention_heads, arch.head_dim),
        "records": make.stored(make.records.window, requests, block),
        "ring": make.ring(batch),
        "slots": batch.token_slots,
        "anchors": batch.positions,
        "lower": batch.lower,
        "sink": make.wide(arch.num_attention_heads),
        "by": make.angles(positions),
        "window": arch.sliding_window,
        "scale": arch.softmax_scale,
        "record": make.records.window,
    }
