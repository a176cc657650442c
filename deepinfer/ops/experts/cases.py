"""Inputs of `experts`; knows no expected values."""

import torch

from deepinfer.ops.batch import Batch
from deepinfer.ops.cases import Case, Maker
from deepinfer.ops.experts.reference import ExpertWeights

PER_TOKEN = ("x", "topk_idx", "topk_weights")


def case(make: Maker, batch: Batch) -> Case:
    """Distinct random experts a token, in any order, with positive weights."""
    arch, tokens = make.arch, len(batch.positions)
    count, inner, hidden = arch.n_routed_experts, arch.moe_intermediate_size, arch.hidden_size
    chosen = make.wide(tokens, count).argsort(dim=1)[:, : arch.num_experts_per_tok]
    return {
        "x": make.hidden(tokens, hidden),
        "topk_idx": chosen,
        "topk_weights": torch.sigmoid(make.wide(*chosen.shape)),
        "weights": ExpertWeights(
            make.fp4(count, 2 * inner, hidden), make.fp4(count, hidden, inner)
        ),
        "limit": arch.swiglu_limit,
    }
