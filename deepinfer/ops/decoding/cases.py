"""Inputs of `decoding`; knows no expected values."""

import torch

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ()
DRAFTS = 3


def case(make: Maker, batch: Batch) -> Case:
    """Every row of the batch decodes, with a row of padding behind."""
    rows = batch.rows.unique()
    return {
        "table": make.table(batch, DRAFTS),
        "rows": torch.cat((rows, rows.new_zeros(1))),
        "places": len(rows) * DRAFTS,
        "ngram": 4,
    }
