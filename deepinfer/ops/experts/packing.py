"""FP4 experts in the order in which the threads of the Hopper kernels read them; plain torch.

A code becomes FP8 in the kernel, scaled by a power of two: the FP8 format holds the eight sizes of
a code times 2^-5 to 2^6 exactly. So a row of the weight has a base scale, and each group of 32
columns the exponent, 0 to 11, by which its scale exceeds that. Knows nothing of kernels but what
one word of theirs must hold.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.experts.reference import ExpertWeights
from deepinfer.ops.formats import Fp4Weight

_OCTAVES = 11  # largest exponent of a group
_LEAST = 5  # a code 1 of exponent 0 is the FP8 number 2^-5
_LARGEST_SCALE = 254 - _LEAST  # E8M0 byte of a base, whose reciprocal factor is an fp32 number


class PackedMatrix(NamedTuple):
    """One matrix of every expert; see `pack_matrix`.

    codes [experts, out / 64, K / 128, 2, 128, 16] uint8; exponents [experts, out / 64, K / 128, 64]
    int32, of four groups each; base [experts, out] fp32.
    """

    codes: Tensor
    exponents: Tensor
    base: Tensor


class PackedExperts(NamedTuple):
    """Both matrices in the order in which threads read them."""

    w13: PackedMatrix
    w2: PackedMatrix
    inner: int


def _slabs(rows: Tensor) -> Tensor:
    """Rows [gate; up] -> slabs of 8 gate and 8 up rows, which one thread holds side by side."""
    return rows.unflatten(0, (2, -1, 8)).transpose(0, 1).flatten(0, 2)


def _words(codes: Tensor) -> Tensor:
    """Codes [..., 2, 4] -> one int32 word each: sizes in nibbles, signs in the bits between.

    Bits 7, 15, 23 and 31 are the signs of the first four codes; shifted left by 4 the word has
    those of the others there.
    """
    sign, size = (codes >> 3).to(torch.int32), (codes & 7).to(torch.int32)
    at = torch.arange(4, dtype=torch.int32, device=codes.device)
    first = (size[..., 0, :] << (4 * at)) | (sign[..., 0, :] << (8 * at + 7))
    second = (size[..., 1, :] << (4 * at + 16)) | (sign[..., 1, :] << (8 * at + 3))
    one, two, three, four = (first | second).unbind(-1)
    return one | two | three | four


def _exponents(sizes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Exponent of every group, 0 where all codes are zero, and the base scale byte of every row.

    Args:
        sizes: largest size of each group, [out, K / 32].
        scale: E8M0 bytes, the same shape.

    Raises:
        ValueError: the scales of a row lie too far apart, or its base is too large.
    """
    used = sizes > 0
    base = torch.where(used, scale, 255).amin(1)
    base = torch.where(used.any(1), base, 127)
    exponents = torch.where(used, scale.to(torch.int32) - base.to(torch.int32)[:, None], 0)
    high, low = int(exponents.max()), int(base.max())
    if high > _OCTAVES:
        row = int(exponents.amax(1).argmax())
        raise ValueError(
            f"experts: FP4 scales of row {row} differ by 2^{high}, more than 2^{_OCTAVES}; "
            "use reference"
        )
    if low > _LARGEST_SCALE:
        raise ValueError(f"experts: FP4 scale byte {low} is above {_LARGEST_SCALE}; use reference")
    return exponents.to(torch.uint8), base


def pack_matrix(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reorder one FP4 matrix so that a thread's part of a tile is 16 neighbouring bytes.

    Rows go in blocks of 64, columns in steps of 128 of two chunks of 64, of which a thread has four
    words: two groups of 32 columns, of each rows r and r + 8. The order inside a block is that of
    wgmma's A operand in registers.

    Args:
        codes: [out, K / 2] uint8, out a multiple of 64, K of 128.
        scale: [out, K / 32] uint8.

    Returns:
        Codes, exponents and base of one expert, as `PackedMatrix` has them: the FP8 numbers of a
        row times its base are the weight.

    Raises:
        ValueError: the scales of a row lie too far apart, or a size does not fit the tiles.
    """
    out, columns = codes.shape[0], 2 * codes.shape[1]
    if out % 64 or columns % 128:
        raise ValueError(f"experts: [{out}, {columns}] is no multiple of [64, 128]; use reference")
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    sizes = (nibbles & 7).view(out, columns // 32, 32).amax(-1)
    exponents, base = _exponents(sizes, scale)
    # axes: block, 4 warps, row bit 3, 8 rows | step, chunk, group, half, 4 lanes, 4 codes
    split = nibbles.view(out // 64, 4, 2, 8, columns // 128, 2, 2, 2, 4, 4)
    words = _words(split.permute(0, 4, 5, 1, 3, 8, 6, 2, 7, 9))
    packed = words.contiguous().view(torch.uint8).view(out // 64, columns // 128, 2, 128, 16)
    steps = exponents.view(out // 64, 64, columns // 128, 4).transpose(1, 2).contiguous()
    factor = ((base.to(torch.int32) + _LEAST) << 23).view(torch.float32)
    return packed, steps.view(torch.int32).squeeze(-1), factor


def pack(weights: ExpertWeights) -> PackedExperts:
    """Stacked FP4 experts in kernel order; four bytes more for each row.

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
        PackedMatrix(*(torch.stack(part) for part in zip(*packed13, strict=True))),
        PackedMatrix(*(torch.stack(part) for part in zip(*packed2, strict=True))),
        w2.codes.shape[-1] * 2,
    )
