"""Inputs of `verify`; knows no expected values."""

import torch

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.step import FLAG_NAN

PER_TOKEN = ("drafts", "chosen", "flags")


def case(make: Maker, batch: Batch) -> Case:
    """One verifying request a token of the batch, with ids so few that many drafts are right."""
    arch, requests = make.arch, len(batch.positions)
    assert arch.draft is not None, "drafts need an architecture with a drafter"
    cap = arch.draft.block_size
    chosen = make.integers(0, 2, requests, cap + 1)
    flags = torch.where(make.integers(0, 20, requests, cap + 1) == 0, FLAG_NAN, 0)
    absent = torch.arange(cap, device=make.device) >= make.integers(0, cap + 1, requests, 1)
    return {
        "drafts": make.integers(0, 2, requests, cap).masked_fill(absent, -1),
        "chosen": chosen.masked_fill(flags > 0, -1),
        "flags": flags.to(torch.int32),
    }
