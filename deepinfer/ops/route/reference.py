"""Chooses the experts of every token. Knows nothing of what experts do.

Source: `spec/model.md` 8; `spec/model-decisions.md` D24.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.products import curve, matmul

_NORMALISER = 1e-20  # literal of the reference, not the norm's eps (D4)


class Routing(NamedTuple):
    """topk_idx [tokens, k] int64 by descending biased score; topk_weights [tokens, k] fp32."""

    topk_idx: Tensor
    topk_weights: Tensor


def route(hidden: Tensor, gate: Tensor, bias: Tensor, *, topk: int, scaling: float) -> Routing:
    """Top-k of sqrt(softplus(logits)) + bias, ties to the lowest expert; weights without bias.

    Args:
        hidden: [tokens, d] bf16 or fp32, the normalised FFN input.
        gate: [experts, d].
        bias: [experts] fp32 for all tokens, or [tokens, experts] where image positions differ.
        topk: experts a token.
        scaling: config key `routed_scaling_factor`.
    """
    scores = curve(torch.nn.functional.softplus, matmul(hidden, gate)).sqrt()  # linear above 20
    order = torch.sort(scores + bias, dim=-1, descending=True, stable=True).indices[:, :topk]
    chosen = scores.gather(1, order)
    total = torch.zeros_like(chosen[:, :1])
    for rank in range(topk):  # in rank order: the last bit depends on it
        total = total + chosen[:, rank, None]
    return Routing(order, chosen / (total + _NORMALISER) * scaling)
