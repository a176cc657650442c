"""Routed experts: clamped SwiGLU with FP4 weights, the routing weight before the last matrix.

Knows nothing of how experts are chosen. Source: `spec/model.md` 8; `spec/model-decisions.md`
D25-D27.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.formats import (
    Fp4Weight,
    Fp8Weight,
    Quantised,
    dequantise_fp4_weight,
    dequantise_fp8,
    dequantise_fp8_weight,
    quantise_fp8,
)
from deepinfer.ops.products import curve, matmul


class ExpertWeights(NamedTuple):
    """Stacked experts: w13 [experts, 2 * inner, d] (w1 = gate rows, then w3 = up), w2 [experts, d,
    inner]; packed FP4, or plain fp32 in debug numerics."""

    w13: Fp4Weight | Tensor
    w2: Fp4Weight | Tensor


def swiglu_clamp(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(g, limit)) * clamp(u, -limit, limit): [tokens, 2 inner] -> fp32 [tokens, inner]."""
    gate, up = gate_up.to(torch.float32).chunk(2, dim=-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate / (1 + curve(torch.exp, -gate)) * up


def plain_weight(weight: Fp4Weight | Fp8Weight | Tensor) -> Tensor:
    """Decoded weight in fp32 (exact), or the plain tensor itself."""
    if isinstance(weight, Fp4Weight):
        return dequantise_fp4_weight(weight)
    return dequantise_fp8_weight(weight) if isinstance(weight, Fp8Weight) else weight


def feed_forward(
    x: Tensor, w13: Tensor, w2: Tensor, limit: float, dtype: torch.dtype, share: Tensor | None
) -> Tensor:
    """One expert on decoded inputs.

    Args:
        x: [tokens, d] fp32, the decoded FP8 input (or the plain one in debug numerics).
        w13: [2 * inner, d] fp32.
        w2: [d, inner] fp32.
        limit: config key `swiglu_limit`.
        dtype: bf16, or fp32 for debug numerics (then nothing is quantised).
        share: [tokens, 1] fp32 routing weights, or None.

    Returns:
        [tokens, d] in `dtype`.
    """
    inner = swiglu_clamp(matmul(x, w13).to(dtype), limit)
    if share is not None:
        inner = inner * share
    inner = inner.to(dtype)  # rounded before it is quantised (D25)
    if dtype == torch.bfloat16:
        inner = dequantise_fp8(quantise_fp8(inner))
    return matmul(inner, w2).to(dtype)


def expert_rows(weight: Fp4Weight | Tensor, expert: int) -> Tensor:
    """Decoded matrix of one expert, fp32."""
    if isinstance(weight, Fp4Weight):
        return dequantise_fp4_weight(Fp4Weight(weight.codes[expert], weight.scale[expert]))
    return weight[expert]


def experts(
    x: Tensor | Quantised,
    topk_idx: Tensor,
    topk_weights: Tensor,
    weights: ExpertWeights,
    *,
    limit: float,
) -> Tensor:
    """Sum of the chosen experts' outputs, each rounded, added in fp32 by ascending expert id.

    Args:
        x: [tokens, d] as an FP8 pair, or plain in debug numerics.
        topk_idx: [tokens, k] expert ids, distinct in a row, -1 = none.
        topk_weights: [tokens, k] fp32 routing weights.
        weights: stacked experts.
        limit: config key `swiglu_limit`.

    Returns:
        [tokens, d] fp32, not rounded: the shared expert is added to it.
    """
    quantised = isinstance(x, Quantised)
    dtype = torch.bfloat16 if quantised else x.dtype
    plain = dequantise_fp8(x) if isinstance(x, Quantised) else x
    total = torch.zeros(plain.shape, dtype=torch.float32, device=plain.device)
    for expert in torch.unique(topk_idx).tolist():
        if expert < 0:
            continue
        token, rank = torch.where(topk_idx == expert)
        share = topk_weights[token, rank].unsqueeze(1)
        w13, w2 = expert_rows(weights.w13, expert), expert_rows(weights.w2, expert)
        total[token] += feed_forward(plain[token], w13, w2, limit, dtype, share).float()
    return total
