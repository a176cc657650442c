"""Inputs of `index_inputs`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("q", "hidden", "by")


def case(make: Maker, batch: Batch) -> Case:
    """Projections of the batch's tokens in a layer that selects."""
    arch, tokens = make.arch, len(batch.positions)
    return {
        "q": make.normal(tokens, arch.index_n_heads * arch.index_head_dim),
        "hidden": make.normal(tokens, arch.hidden_size),
        "weights_proj": make.plain(arch.index_n_heads, arch.hidden_size),
        "by": make.angles(batch.positions, compressed=True),
        "scale": arch.index_scale,
        "record": make.records.index_key,
    }
