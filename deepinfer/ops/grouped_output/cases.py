"""Inputs of `grouped_output`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.grouped_output.reference import OutputWeights

PER_TOKEN = ("o",)


def case(make: Maker, batch: Batch) -> Case:
    """Attention outputs of the batch's tokens."""
    arch = make.arch
    heads, width, low = arch.num_attention_heads, arch.head_dim, arch.o_groups * arch.o_lora_rank
    return {
        "o": make.normal(len(batch.positions), heads, width),
        "weights": OutputWeights(
            make.fp8(low, heads * width // arch.o_groups), make.fp8(arch.hidden_size, low)
        ),
        "groups": arch.o_groups,
    }
