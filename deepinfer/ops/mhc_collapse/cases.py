"""Inputs of `mhc_collapse`; knows no expected values."""

import torch

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("streams", "pre")


def case(make: Maker, batch: Batch) -> Case:
    """Streams and collapse weights of the batch's tokens."""
    arch, tokens = make.arch, len(batch.positions)
    return {
        "streams": make.normal(tokens, arch.hc_mult, arch.hidden_size),
        "pre": torch.sigmoid(make.wide(tokens, arch.hc_mult)),
        "norm": make.gains(arch.hidden_size),
        "eps": arch.rms_norm_eps,
    }
