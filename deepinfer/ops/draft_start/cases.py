"""Inputs of `draft_start`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ()


def case(make: Maker, batch: Batch) -> Case:
    """A block for every row of the batch."""
    draft = make.arch.draft
    assert draft is not None, "drafts need an architecture with a drafter"
    return {
        "table": make.table(batch, draft.block_size),
        "rows": batch.rows.unique(),
        "block": draft.block_size,
        "noise": draft.noise_token_id,
    }
