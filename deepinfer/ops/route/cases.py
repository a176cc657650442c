"""Inputs of `route`; knows no expected values."""

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker

PER_TOKEN = ("hidden",)


def case(make: Maker, batch: Batch) -> Case:
    """Normalised FFN inputs with the gate of a backbone layer."""
    arch = make.arch
    return {
        "hidden": make.normal(len(batch.positions), arch.hidden_size),
        "gate": make.plain(arch.n_routed_experts, arch.hidden_size),
        "bias": make.wide(arch.n_routed_experts, size=0.1),
        "topk": arch.num_experts_per_tok,
        "scaling": arch.routed_scaling_factor,
    }
