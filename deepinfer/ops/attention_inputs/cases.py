"""Inputs of `attention_inputs`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("q", "kv", "by")


def case(make: Maker, batch: Batch) -> Case:
    """Projections of the batch's tokens in a layer with a compressed branch."""
    arch, tokens = make.arch, len(batch.positions)
    return {
        "q": make.normal(tokens, arch.num_attention_heads * arch.head_dim),
        "kv": make.normal(tokens, arch.head_dim),
        "kv_norm": make.gains(arch.head_dim),
        "by": make.angles(batch.positions, compressed=True),
        "heads": arch.num_attention_heads,
        "eps": arch.rms_norm_eps,
        "record": make.records.window,
    }
