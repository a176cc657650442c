"""Routed experts on the CPU: weights decoded once, (token, expert) pairs sorted once.

Only the two products loop over experts; everything between them runs over all pairs at a time.
Bits equal the reference's. Knows nothing of how experts are chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.ops.cpu_tiles import hold_fp4, product, wide_input
from deepinfer.ops.experts.reference import ExpertWeights, swiglu_clamp
from deepinfer.ops.formats import Quantised

_PAIRS = 1 << 13  # most pairs computed at a time: a bound on memory


def pack(weights: ExpertWeights) -> ExpertWeights:
    """Both stacks decoded."""
    return ExpertWeights(*(hold_fp4(weight) for weight in weights))


def experts(
    x: Tensor | Quantised,
    topk_idx: Tensor,
    topk_weights: Tensor,
    weights: ExpertWeights,
    *,
    limit: float,
) -> Tensor:
    """As the reference, for weights that `pack` decoded."""
    wide = wide_input(x)
    step = max(1, _PAIRS // topk_idx.shape[1])
    parts = [
        _some(wide[rows], topk_idx[rows], topk_weights[rows], weights, limit)
        for rows in (slice(low, low + step) for low in range(0, max(1, len(wide)), step))
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _some(
    x: Tensor, topk_idx: Tensor, topk_weights: Tensor, weights: ExpertWeights, limit: float
) -> Tensor:
    w13, w2 = weights
    assert isinstance(w13, Tensor), "pack decodes the weights"
    assert isinstance(w2, Tensor), "pack decodes the weights"
    count, choices = topk_idx.shape
    ids, rank = topk_idx.sort(dim=1)  # the outputs of a token are added by ascending expert
    order = ids.flatten().argsort(stable=True)
    token = order // choices
    ends = torch.bincount(ids.flatten() + 1, minlength=len(w13) + 1).cumsum(0).tolist()
    used = [
        (expert, slice(ends[expert], ends[expert + 1]))
        for expert in range(len(w13))
        if ends[expert + 1] > ends[expert]
    ]
    gate_up = x.new_zeros(len(order), w13.shape[1], dtype=torch.bfloat16)
    for expert, pairs in used:
        gate_up[pairs] = product(x.index_select(0, token[pairs]), w13[expert])
    share = topk_weights.gather(1, rank).flatten()[order].unsqueeze(1)
    inner = (swiglu_clamp(gate_up, limit) * share).to(torch.bfloat16)
    inner = wide_input(inner)
    out = x.new_zeros(len(order), x.shape[1], dtype=torch.bfloat16)
    for expert, pairs in used:
        out[pairs] = product(inner[pairs], w2[expert])
    placed = torch.empty_like(out)
    placed[order] = out
    placed = placed.unflatten(0, (count, choices))
    total = torch.zeros(x.shape, dtype=torch.float32)
    for choice in range(choices):
        total += placed[:, choice]
    return total
