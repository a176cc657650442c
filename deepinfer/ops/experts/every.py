"""Routed experts without a look at the routing: every expert computes every token.

Sizes depend on nothing but the number of tokens, so it can be captured in a graph, where the
reference cannot. Bits are the reference's. Knows nothing of how experts are chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.ops.experts.reference import ExpertWeights, expert_rows, feed_forward
from deepinfer.ops.formats import Fp4Weight, Quantised, dequantise_fp8


def experts(
    x: Tensor | Quantised,
    topk_idx: Tensor,
    topk_weights: Tensor,
    weights: ExpertWeights,
    *,
    limit: float,
) -> Tensor:
    """As the reference; costs experts / k times its products."""
    dtype = torch.bfloat16 if isinstance(x, Quantised) else x.dtype
    plain = dequantise_fp8(x) if isinstance(x, Quantised) else x
    w13 = weights.w13
    count = len(w13.codes if isinstance(w13, Fp4Weight) else w13)
    total = torch.zeros(plain.shape, dtype=torch.float32, device=plain.device)
    for expert in range(count):
        chosen = topk_idx == expert
        share = torch.where(chosen, topk_weights, 0.0).sum(1, keepdim=True)  # at most one term
        gate_up, down = expert_rows(weights.w13, expert), expert_rows(weights.w2, expert)
        out = feed_forward(plain, gate_up, down, limit, dtype, share).float()
        total = torch.where(chosen.any(1, keepdim=True), total + out, total)
    return total


def refuses(*, arch: str, **_facts: object) -> str | None:
    """A CPU has no graphs, and the reference does less work."""
    return "for devices with graphs" if arch == "cpu" else None
