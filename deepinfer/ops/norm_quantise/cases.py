"""Inputs of `norm_quantise`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("x",)


def case(make: Maker, batch: Batch) -> Case:
    """The low-rank query."""
    arch = make.arch
    return {
        "x": make.normal(len(batch.positions), arch.q_lora_rank),
        "weight": make.gains(arch.q_lora_rank),
        "eps": arch.rms_norm_eps,
        "quantise": make.quantised,
    }
