"""Inputs of `head`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("hidden",)


def case(make: Maker, batch: Batch) -> Case:
    """Normalised hidden states of the batch's tokens."""
    arch = make.arch
    return {
        "hidden": make.normal(len(batch.positions), arch.hidden_size),
        "weight": make.plain(arch.vocab_size, arch.hidden_size),
    }
