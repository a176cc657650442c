"""Inputs of `engram_values`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.formats import quantise_fp8

PER_TOKEN = ("codes", "scale")


def case(make: Maker, batch: Batch) -> Case:
    """Rows of ordinary numbers."""
    engram = make.arch.engram
    assert engram is not None, "rows need an architecture with Engram"
    shape = len(batch.positions), engram.columns, engram.head_dim
    codes, scale = quantise_fp8(make.wide(*shape))
    return {"codes": codes, "scale": scale, "dtype": make.dtype}
