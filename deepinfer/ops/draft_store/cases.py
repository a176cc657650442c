"""Inputs of `draft_store`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ()
DRAFTS = 3


def case(make: Maker, batch: Batch) -> Case:
    """Drafts for every row of the batch, as `markov_draft` lays them out."""
    rows = batch.rows.unique()
    return {
        "table": make.table(batch, DRAFTS),
        "rows": rows,
        "tokens": make.integers(0, make.arch.vocab_size, DRAFTS, len(rows)).T,
        "confidence": make.wide(len(rows), DRAFTS),
    }
