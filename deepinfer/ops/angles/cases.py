"""Inputs of `angles`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.rotation import layer_frequencies

PER_TOKEN = ("positions",)


def case(make: Maker, batch: Batch) -> Case:
    """Positions of a batch, frequencies of layers with a compressed branch."""
    freqs = layer_frequencies(make.arch)[1].to(make.device)
    return {"positions": batch.positions, "freqs": freqs}
