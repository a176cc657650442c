"""Inputs of `add_outputs`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("routed", "shared")


def case(make: Maker, batch: Batch) -> Case:
    """Two fp32 outputs."""
    shape = len(batch.positions), make.arch.hidden_size
    return {"routed": make.wide(*shape), "shared": make.wide(*shape), "dtype": make.dtype}
