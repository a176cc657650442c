"""Inputs of `mhc_update`; knows no expected values."""

import torch

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.mhc_update.reference import Pending

PER_TOKEN = ("streams", "pending")


def case(make: Maker, batch: Batch) -> Case:
    """Streams and a sub-layer output; the combination's rows sum to one."""
    arch, tokens = make.arch, len(batch.positions)
    m, hidden = arch.hc_mult, arch.hidden_size
    return {
        "streams": make.normal(tokens, m, hidden),
        "pending": Pending(
            output=make.normal(tokens, hidden),
            post=2 * torch.sigmoid(make.wide(tokens, m)),
            comb=torch.softmax(make.wide(tokens, m, m), dim=-1),
        ),
    }
