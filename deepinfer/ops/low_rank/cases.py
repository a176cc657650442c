"""Inputs of `low_rank`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.low_rank.reference import LowRankWeights

PER_TOKEN = ("x",)


def case(make: Maker, batch: Batch) -> Case:
    """Normalised attention inputs with the projections of a layer."""
    arch = make.arch
    hidden, rank = arch.hidden_size, arch.q_lora_rank
    return {
        "x": make.hidden(len(batch.positions), hidden),
        "weights": LowRankWeights(
            make.fp8(rank, hidden), make.fp8(arch.head_dim, hidden), make.gains(rank)
        ),
        "eps": arch.rms_norm_eps,
        "quantise": make.quantised,
    }
