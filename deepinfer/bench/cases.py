"""Random inputs of the op benches and of the GPU tests, made on the device from a seed.

Never zeros, never NaN: such data runs faster than real data and hides unwritten outputs. Knows
nothing of time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from deepinfer.ops.experts import ExpertWeights
from deepinfer.ops.formats import Fp4Weight, Fp8Weight, Quantised, quantise_fp8
from deepinfer.ops.mhc_boundary import HyperWeights
from deepinfer.ops.mhc_update.reference import Pending

Scales = tuple[int, int]  # first and last E8M0 byte; 127 is 1.0
USUAL: Scales = (118, 122)


def random_bytes(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Uniform uint8."""
    return torch.randint(0, 256, shape, dtype=torch.uint8, device=device)


def random_scales(shape: tuple[int, ...], scales: Scales, device: torch.device) -> Tensor:
    """E8M0 bytes from `scales`, both ends included."""
    return torch.randint(scales[0], scales[1] + 1, shape, dtype=torch.uint8, device=device)


def fp8_weight(
    out: int, columns: int, device: torch.device, scales: Scales = (110, 114)
) -> Fp8Weight:
    """E4M3 weight with any finite code; the usual scales keep products of unit size."""
    codes = random_bytes((out, columns), device)
    codes = torch.where((codes & 127) == 127, codes - 1, codes)  # NaN codes
    return Fp8Weight(codes, random_scales((-(-out // 32), -(-columns // 32)), scales, device))


def expert_weights(
    experts: int, hidden: int, inner: int, device: torch.device, scales: Scales = USUAL
) -> ExpertWeights:
    """Stacked FP4 experts with every code and random scales."""
    w13 = Fp4Weight(
        random_bytes((experts, 2 * inner, hidden // 2), device),
        random_scales((experts, 2 * inner, hidden // 32), scales, device),
    )
    w2 = Fp4Weight(
        random_bytes((experts, hidden, inner // 2), device),
        random_scales((experts, hidden, inner // 32), scales, device),
    )
    return ExpertWeights(w13, w2)


def activations(tokens: int, columns: int, device: torch.device, size: float = 1.0) -> Quantised:
    """FP8 pair of normal values of standard deviation `size`."""
    values = torch.randn((tokens, columns), device=device) * size
    return quantise_fp8(values.to(torch.bfloat16))


def routing(tokens: int, experts: int, choices: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Distinct uniform expert ids [tokens, choices] int64 and fp32 weights that sum to 2.5."""
    ids = torch.rand((tokens, experts), device=device).topk(choices, dim=1).indices
    weights = torch.rand((tokens, choices), device=device) + 0.1
    return ids, weights / weights.sum(1, keepdim=True) * 2.5


def hyper_weights(hidden: int, device: torch.device) -> HyperWeights:
    """One boundary of 4 streams."""
    return HyperWeights(
        torch.randn((24, 4 * hidden), device=device) * 0.02,
        torch.randn(24, device=device),
        torch.rand(3, device=device) + 0.5,
        torch.rand(hidden, device=device) + 0.5,
    )


def boundary_inputs(
    tokens: int, hidden: int, device: torch.device
) -> tuple[Tensor, Pending, Tensor]:
    """Streams, pending sub-layer output and collapse weights."""
    streams = torch.randn((tokens, 4, hidden), device=device).to(torch.bfloat16)
    output = torch.randn((tokens, hidden), device=device).to(torch.bfloat16)
    comb = torch.rand((tokens, 4, 4), device=device)
    comb = comb / comb.sum(-1, keepdim=True)
    pending = Pending(output, torch.rand((tokens, 4), device=device) * 2, comb)
    return streams, pending, torch.rand((tokens, 4), device=device)
