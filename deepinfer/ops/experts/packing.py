"""FP4 experts in the order in which the threads of the Hopper kernels read them; plain torch.

Knows nothing of kernels but what one word of theirs must hold.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.experts.reference import ExpertWeights
from deepinfer.ops.formats import Fp4Weight

_LARGEST_SCALE = 160  # E8M0 byte; a larger one would overflow the kernel's bf16 multiplier


class PackedExperts(NamedTuple):
    """Both matrices in the order in which threads read them; see `pack_matrix`."""

    w13: Fp4Weight
    w2: Fp4Weight
    inner: int


def _slabs(rows: Tensor) -> Tensor:
    """Rows [gate; up] -> slabs of 8 gate and 8 up rows, which one thread holds side by side."""
    return rows.unflatten(0, (2, -1, 8)).transpose(0, 1).flatten(0, 2)


def _fields(codes: Tensor) -> Tensor:
    """Four codes [..., 2 halves of K, 2 rows] -> one 16-bit field that `_DECODE` takes apart."""
    sign, size = (codes >> 3).to(torch.int32), (codes & 7).to(torch.int32)
    first = (sign[..., 0, 0] << 15) | (size[..., 0, 0] << 6)
    second = (sign[..., 0, 1] << 14) | (size[..., 0, 1] << 3)
    third = (sign[..., 1, 0] << 9) | size[..., 1, 0]
    fourth = (sign[..., 1, 1] << 13) | (size[..., 1, 1] << 10)
    return (first | second | third | fourth).to(torch.int16)


def pack_matrix(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Reorder one FP4 matrix so that a thread's part of a tile is 16 neighbouring bytes.

    Rows go in blocks of 64, columns in steps of 128 of two chunks of 64; a chunk's first and second
    32 columns share a word. The order inside a block is that of wgmma's A operand in registers.

    Args:
        codes: [out, K / 2] uint8, out a multiple of 64, K of 128.
        scale: [out, K / 32] uint8.

    Returns:
        codes [out / 64, K / 128, 2, 128, 16] uint8; scales [out / 64, K / 128, 64] int32, four
        bytes a row and step.

    Raises:
        ValueError: a scale byte is too large for the kernel, or a size does not fit the tiles.
    """
    out, columns = codes.shape[0], 2 * codes.shape[1]
    if out % 64 or columns % 128:
        raise ValueError(f"experts: [{out}, {columns}] is no multiple of [64, 128]; use reference")
    if int(scale.max()) > _LARGEST_SCALE:
        raise ValueError(
            f"experts: FP4 scale byte {int(scale.max())} is above {_LARGEST_SCALE}; use reference"
        )
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    # axes: block, 4 warps, row bit 3, 8 rows | step, chunk, half, 4 words, 4 lanes, parity
    split = nibbles.view(out // 64, 4, 2, 8, columns // 128, 2, 2, 4, 4, 2)
    words = _fields(split.permute(0, 4, 5, 1, 3, 8, 7, 9, 6, 2))
    packed = words.contiguous().view(torch.uint8).view(out // 64, columns // 128, 2, 128, 16)
    steps = scale.view(out // 64, 64, columns // 128, 4).transpose(1, 2).contiguous()
    return packed, steps.view(torch.int32).squeeze(-1)


def pack(weights: ExpertWeights) -> PackedExperts:
    """Stacked FP4 experts in kernel order; as many bytes as before.

    Raises:
        ValueError: the weights are not FP4, or `pack_matrix` refuses one.
    """
    w13, w2 = weights.w13, weights.w2
    if not (isinstance(w13, Fp4Weight) and isinstance(w2, Fp4Weight)):
        raise ValueError("experts: the triton kernels take FP4 weights only; use reference")
    packed13 = [
        pack_matrix(_slabs(c), _slabs(s)) for c, s in zip(w13.codes, w13.scale, strict=True)
    ]
    packed2 = [pack_matrix(c, s) for c, s in zip(w2.codes, w2.scale, strict=True)]
    return PackedExperts(
        Fp4Weight(*(torch.stack(part) for part in zip(*packed13, strict=True))),
        Fp4Weight(*(torch.stack(part) for part in zip(*packed2, strict=True))),
        w2.codes.shape[-1] * 2,
    )
