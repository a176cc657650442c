"""Angles of the rotary embedding. Knows nothing of what is rotated."""

from __future__ import annotations

from torch import Tensor

from deepinfer.ops.rotation import Rotation, rotation


def angles(positions: Tensor, freqs: Tensor) -> Rotation:
    """Cosine and sine of fp32 products (D16), computed in float64 and rounded once.

    Args:
        positions: [tokens] int64, >= 0.
        freqs: [rope / 2] fp32 inverse frequencies.

    Returns:
        fp32 [tokens, rope / 2] each.
    """
    return rotation(positions, freqs)
