"""Inputs of `mhc_boundary`; knows no expected values."""

import torch

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.mhc_boundary.reference import HyperWeights
from deepinfer.ops.mhc_update.cases import case as update_case

PER_TOKEN = ("streams", "pending", "pre")


def case(make: Maker, batch: Batch) -> Case:
    """Streams with a pending sub-layer output."""
    arch = make.arch
    m, count, hidden = arch.hc_mult, arch.hc_coefficients, arch.hidden_size
    return {
        **update_case(make, batch),
        "pre": torch.sigmoid(make.wide(len(batch.positions), m)),
        "weights": HyperWeights(
            fn=make.wide(count, m * hidden, size=(m * hidden) ** -0.5),
            base=make.wide(count),
            scale=make.wide(3),
            norm=make.gains(hidden),
        ),
        "eps": arch.rms_norm_eps,
        "hc_eps": arch.hc_eps,
        "iterations": arch.hc_sinkhorn_iters,
        "quantise": make.quantised,
    }
