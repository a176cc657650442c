"""Inputs of `shared_expert`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.shared_expert.reference import SharedWeights

PER_TOKEN = ("x",)


def case(make: Maker, batch: Batch) -> Case:
    """Normalised FFN inputs with the shared expert of a layer."""
    arch = make.arch
    hidden, inner = arch.hidden_size, arch.moe_intermediate_size
    return {
        "x": make.hidden(len(batch.positions), hidden),
        "weights": SharedWeights(make.fp8(2 * inner, hidden), make.fp8(hidden, inner)),
        "limit": arch.swiglu_limit,
    }
