"""Adds what the n-gram memory recalls to every residual stream, through a gate.

Knows nothing of hashing or tables. Source: `spec/model.md` 9.5; `spec/model-decisions.md` D48.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.products import WIDE, mean_square, sigmoid

LEAST = 1e-6  # literal of the reference


class EngramGate(NamedTuple):
    """streams [tokens, m, hidden] and the gate [tokens, m] fp32 that was applied."""

    streams: Tensor
    gate: Tensor


def engram_gate(
    streams: Tensor, kv: Tensor, q_weight: Tensor, k_weight: Tensor, live: Tensor, *, eps: float
) -> EngramGate:
    """X_j + sigmoid(copysign(sqrt(|dot_j|), dot_j)) * V with a normalised dot of stream and key.

    Args:
        streams: [tokens, m, hidden] bf16 or fp32.
        kv: [tokens, (m + 1) * hidden]: one key a stream, then the value.
        q_weight: [m, hidden].
        k_weight: [m, hidden].
        live: [tokens] bool; False (image positions) closes the gate.
        eps: config key `rms_norm_eps`.
    """
    m, hidden = streams.shape[1:]
    x = streams.to(torch.float32)
    parts = kv.to(torch.float32).unflatten(-1, (m + 1, hidden))
    keys, value = parts[:, :m], parts[:, m]
    weight = q_weight.to(torch.float32) * k_weight.to(torch.float32)
    dot = (x.to(WIDE) * weight.to(WIDE) * keys.to(WIDE)).sum(-1).to(torch.float32)
    norm = torch.rsqrt(mean_square(x) + eps) * torch.rsqrt(mean_square(keys) + eps)
    dot = dot * norm.squeeze(-1) * hidden**-0.5
    gate = sigmoid(torch.copysign(dot.abs().clamp(min=LEAST).sqrt(), dot))
    gate = gate * live.unsqueeze(1)
    return EngramGate((x + gate.unsqueeze(-1) * value.unsqueeze(1)).to(streams.dtype), gate)
