"""Rotary position embedding: frequencies, angles of a step, rotation of the last channels.

Angles are fp32 products of position and fp32 frequency (D16); pairs are neighbours (2i, 2i+1).
Knows nothing of layers.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.arch import Arch, RopeScaling
from deepinfer.ops.products import curve


class Rotation(NamedTuple):
    """cos and sin of every angle of some positions, fp32 [tokens, rope / 2]."""

    cos: Tensor
    sin: Tensor

    def rows(self, index: Tensor) -> Rotation:
        """The angles of some tokens."""
        return Rotation(self.cos[index], self.sin[index])


def frequencies(rope: int, theta: float, scaling: RopeScaling | None = None) -> Tensor:
    """Inverse frequencies theta^(-2i / rope), stretched by YaRN where `scaling` is given (D17).

    Returns:
        fp32 [rope / 2], on the CPU.
    """
    steps = torch.arange(0, rope, 2, dtype=torch.float32)
    plain = 1.0 / (theta ** (steps / rope))
    if scaling is None:
        return plain

    def dimension(turns: float) -> float:
        span = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return rope * math.log(span) / (2 * math.log(theta))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), rope - 1)
    index = torch.arange(rope // 2, dtype=torch.float32)
    ramp = ((index - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / scaling.factor * ramp + plain * (1 - ramp)


def layer_frequencies(arch: Arch) -> tuple[Tensor, Tensor]:
    """Frequencies of (window-only layers and draft stages, layers with a compressed branch)."""
    rope = arch.qk_rope_head_dim
    window = frequencies(rope, arch.rope_theta)
    return window, frequencies(rope, arch.compress_rope_theta, arch.rope_scaling)


def rotation(positions: Tensor, freqs: Tensor) -> Rotation:
    """Angles of positions [tokens] (int64, >= 0) for frequencies fp32 [rope / 2]."""
    angles = positions.to(torch.float32).unsqueeze(-1) * freqs
    return Rotation(curve(torch.cos, angles), curve(torch.sin, angles))


def rotate(x: Tensor, by: Rotation, *, inverse: bool = False) -> Tensor:
    """Rotate the last `rope` channels of every vector; arithmetic fp32, rounded once.

    Args:
        x: [tokens, *, channels], bf16 or fp32; not changed.
        by: angles, one row a token.
        inverse: rotate back (conjugate angle).

    Returns:
        Shape and dtype of `x`.
    """
    half = by.cos.shape[-1]
    middle = [1] * (x.dim() - 2)
    cos = by.cos.view(-1, *middle, half)
    sin = by.sin.view(-1, *middle, half)
    if inverse:
        sin = -sin
    keep, tail = x[..., : -2 * half], x[..., -2 * half :].to(torch.float32)
    even, odd = tail[..., 0::2], tail[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    return torch.cat((keep, turned.to(x.dtype)), dim=-1)
