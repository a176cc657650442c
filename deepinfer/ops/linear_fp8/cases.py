"""Inputs of `linear_fp8`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("x",)


def case(make: Maker, batch: Batch) -> Case:
    """The query down-projection."""
    arch = make.arch
    return {
        "x": make.hidden(len(batch.positions), arch.hidden_size),
        "weight": make.fp8(arch.q_lora_rank, arch.hidden_size),
    }
