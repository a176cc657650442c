"""Quantise-dequantise with straight-through gradients: what the checkpoint's numbers look like.

Forward values equal those of `deepinfer.ops.formats` bit for bit; the gradient of each rounding is
the identity. Written as arithmetic without tables, so that a compiler can fuse it. It does not know
which tensors are weights.
Source: `spec/model.md` 4, 6.4, 6.5; `spec/model-decisions.md` D8-D14.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_E4M3_MAX = 448.0
_E2M1_MAX = 6.0
_FP8_FLOOR = 1e-4
GROUP = 32
LATENT_GROUP = 16


def power_of_two(size: Tensor) -> Tensor:
    """Smallest power of two >= size, fp32, for normal positive fp32 sizes."""
    bits = size.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def round_e4m3(values: Tensor) -> Tensor:
    """Nearest E4M3 value, half to even, saturating; fp32."""
    bounded = values.clamp(-_E4M3_MAX, _E4M3_MAX)
    return bounded.to(torch.float8_e4m3fn).to(torch.float32)


def round_e2m1(values: Tensor) -> Tensor:
    """Nearest E2M1 value, half to the even code, saturating; fp32."""
    bounded = values.clamp(-_E2M1_MAX, _E2M1_MAX)
    size = bounded.abs()
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    return torch.round(bounded / step) * step


def fp8_rows(x: Tensor) -> Tensor:
    """FP8 groups of 32 along the last axis with power-of-two scales; dtype of `x`, exact."""
    groups = x.to(torch.float32).unflatten(-1, (-1, GROUP))
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=_FP8_FLOOR)
    scale = power_of_two(amax / _E4M3_MAX)
    return (round_e4m3(groups / scale) * scale).flatten(-2).to(x.dtype)


def fp4_latent_rows(x: Tensor) -> Tensor:
    """FP4 groups of 16 along the last axis with E4M3 scales: the latents of the cache."""
    groups = x.to(torch.float32).unflatten(-1, (-1, LATENT_GROUP))
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=_E2M1_MAX * 2.0**-9)
    scale = round_e4m3(amax / _E2M1_MAX)
    return (round_e2m1(groups / scale) * scale).flatten(-2).to(x.dtype)


def fp4_rows(x: Tensor) -> Tensor:
    """FP4 groups of 32 along the last axis with power-of-two scales: index keys and queries."""
    groups = x.to(torch.float32).unflatten(-1, (-1, GROUP))
    amax = groups.abs().amax(-1, keepdim=True).clamp(min=_E2M1_MAX * 2.0**-126)
    scale = power_of_two(amax / _E2M1_MAX)
    return (round_e2m1(groups / scale) * scale).flatten(-2).to(x.dtype)


def fp8_block_scale(weight: Tensor) -> Tensor:
    """fp32 power-of-two scales [out / 32, in / 32] of an FP8 weight [out, in]."""
    blocks = weight.unflatten(-1, (-1, GROUP)).unflatten(0, (-1, GROUP))
    amax = blocks.abs().amax((1, 3)).clamp(min=_FP8_FLOOR)
    return power_of_two(amax / _E4M3_MAX)


def fp8_blocks(weight: Tensor) -> Tensor:
    """FP8 of 32 x 32 blocks: weight fp32 [out, in], both multiples of 32; fp32, exact in bf16."""
    blocks = weight.unflatten(-1, (-1, GROUP)).unflatten(0, (-1, GROUP))
    scale = fp8_block_scale(weight)[:, None, :, None]
    return (round_e4m3(blocks / scale) * scale).flatten(0, 1).flatten(1)


def fp4_weight_scale(weight: Tensor) -> Tensor:
    """fp32 power-of-two scales [*, in / 32] of an FP4 weight [*, in]."""
    amax = weight.unflatten(-1, (-1, GROUP)).abs().amax(-1).clamp(min=_FP8_FLOOR)
    return power_of_two(amax / _E2M1_MAX)


def fp4_weight(weight: Tensor) -> Tensor:
    """FP4 of groups of 32 columns: weight fp32 [*, in]; fp32, exact in bf16."""
    groups = weight.unflatten(-1, (-1, GROUP))
    scale = fp4_weight_scale(weight).unsqueeze(-1)
    return (round_e2m1(groups / scale) * scale).flatten(-2)


class _Fp8(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return fp8_rows(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class _Fp4Latents(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return fp4_latent_rows(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class _Fp4(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return fp4_rows(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


def fp8_vectors(x: Tensor) -> Tensor:
    """`fp8_rows` whose gradient is the identity."""
    return _Fp8.apply(x)  # type: ignore[no-any-return]


def fp4_latents(x: Tensor) -> Tensor:
    """`fp4_latent_rows` whose gradient is the identity."""
    return _Fp4Latents.apply(x)  # type: ignore[no-any-return]


def fp4_vectors(x: Tensor) -> Tensor:
    """`fp4_rows` whose gradient is the identity."""
    return _Fp4.apply(x)  # type: ignore[no-any-return]
