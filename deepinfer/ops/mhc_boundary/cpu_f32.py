"""The step between two sub-layers on the CPU with products in fp32, streams widened once.

Knows nothing of attention or experts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.ops.cpu_codes import quantise as quantise_fp8
from deepinfer.ops.cpu_rows import product
from deepinfer.ops.mhc_boundary.cpu import pack, split
from deepinfer.ops.mhc_boundary.reference import Boundary, HyperWeights
from deepinfer.ops.mhc_update.reference import Pending

__all__ = ["mhc_boundary", "pack"]


def _mean_square(x: Tensor) -> Tensor:
    """Mean of squares over the last axis, fp32: [*, n] -> [*, 1]."""
    return x.square().mean(-1, keepdim=True)


def _update(streams: Tensor, pending: Pending) -> Tensor:
    """The streams with what is pending, fp32 [tokens, m, hidden], not rounded."""
    added = pending.post.unsqueeze(2) * pending.output.to(torch.float32).unsqueeze(1)
    return torch.baddbmm(added, pending.comb.mT, streams.to(torch.float32))


def _collapse(x: Tensor, pre: Tensor, norm: Tensor, eps: float) -> Tensor:
    """Weighted sum of streams fp32 [tokens, m, hidden], rounded, and its norm: bf16."""
    first, *rest = (pre.unsqueeze(2) * x).unbind(1)
    plain = sum(rest, start=first).to(torch.bfloat16).to(torch.float32)
    plain *= torch.rsqrt(_mean_square(plain) + eps)
    return (plain * norm).to(torch.bfloat16)


def mhc_boundary(
    streams: Tensor,
    pending: Pending | None,
    pre: Tensor,
    weights: HyperWeights,
    *,
    eps: float,
    hc_eps: float,
    iterations: int,
    quantise: bool,
) -> Boundary:
    """As the reference but for the order of sums, for weights that `pack` prepared."""
    if pending is not None:
        streams = _update(streams, pending).to(torch.bfloat16)
    x = streams.to(torch.float32)
    flat = x.flatten(1)
    u = product(flat, weights.fn)
    found = split(u, _mean_square(flat), weights, eps, hc_eps, iterations)
    hidden = _collapse(x, pre, weights.norm, eps)
    pair = quantise_fp8(hidden) if quantise else None
    return Boundary(streams, found.pre, found.post, found.comb, hidden, pair)
