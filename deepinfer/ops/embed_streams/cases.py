"""Inputs of `embed_streams`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("ids",)


def case(make: Maker, batch: Batch) -> Case:
    """One id a token of the batch."""
    arch = make.arch
    return {
        "ids": make.integers(0, arch.vocab_size, len(batch.positions)),
        "table": make.normal(arch.vocab_size, arch.hidden_size),
        "streams": arch.hc_mult,
        "dtype": make.dtype,
    }
