"""Inputs of `conclude`; knows no expected values."""

import torch

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.conclude.reference import Group, RowTable

PER_TOKEN = ()
CAP = 3


def case(make: Maker, batch: Batch, *, masked: bool = False) -> Case:
    """Every row of the batch generates, with drafts of which most are right."""
    table = make.table(batch, CAP)
    row = batch.rows.unique()
    verified = torch.minimum(table.cap, table.limit - table.length - 1)[row]
    first = (verified + 1).cumsum(0) - verified - 1
    depth = torch.arange(CAP + 1, device=make.device)
    drafts = table.tokens[row.unsqueeze(1), table.length[row].unsqueeze(1) + depth]
    chosen = drafts[depth <= verified.unsqueeze(1)]
    other = make.integers(0, 4, len(chosen)) == 0
    known = {name: getattr(table, name) for name in RowTable._fields}
    legal = make.integers(-1, CAP + 1, len(batch.slots)) if masked else None
    return {
        "table": RowTable(**known),
        "group": Group(row, verified, first, legal),
        "chosen": torch.where(other, 1, chosen),
        "flags": torch.zeros(len(chosen), dtype=torch.int32, device=make.device),
        "cap": CAP,
    }
