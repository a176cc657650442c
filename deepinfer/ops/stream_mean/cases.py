"""Inputs of `stream_mean`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("streams",)


def case(make: Maker, batch: Batch) -> Case:
    """Random streams."""
    arch = make.arch
    return {"streams": make.normal(len(batch.positions), arch.hc_mult, arch.hidden_size)}
