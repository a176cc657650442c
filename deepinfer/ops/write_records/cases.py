"""Inputs of `write_records`; knows no expected values."""

from deepinfer.ops.batch import Batch, ring_places
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("places", "records")


def case(make: Maker, batch: Batch) -> Case:
    """Window records of the batch, for rings that are full of earlier ones."""
    return {
        "ring": make.ring(batch),
        "places": ring_places(batch, make.arch.ring_rows),
        "records": make.stored(make.records.window, len(batch.positions)),
    }
