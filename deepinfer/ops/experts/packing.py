"""FP4 experts in the order in which the threads of the Hopper kernels read them; plain torch.

A code becomes FP8 in the kernel, scaled by a power of two: the FP8 format holds the eight sizes of
a code times 2^-5 to 2^6 exactly. So a row of the weight has a base scale, and each group of 32
columns the exponent, 0 to 11, by which its scale exceeds that. In a row whose scales lie further
apart the largest are kept, and what is below the base is rounded to the sizes of the base: by at
most 2^-12 of the row's largest weight (`Rounded` says how many groups, and by how much). Knows
nothing of kernels but what one word of theirs must hold.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.experts.reference import ExpertWeights
from deepinfer.ops.formats import Fp4Weight

_OCTAVES = 11  # largest exponent of a group
_LEAST = 5  # a code 1 of exponent 0 is the FP8 number 2^-5
_LARGEST_SCALE = 254 - _LEAST  # E8M0 byte of a base, whose reciprocal factor is an fp32 number


_SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Rounded(NamedTuple):
    """What packing changed: `groups` of 32 columns out of `of` have another value than stored.

    `error` is the largest change of a weight, as a part of the largest weight of its row.
    """

    groups: int
    of: int
    error: float

    def and_also(self, other: Rounded) -> Rounded:
        """Both together."""
        error = max(self.error, other.error)
        return Rounded(self.groups + other.groups, self.of + other.of, error)


_EXACT = Rounded(0, 0, 0.0)


class PackedMatrix(NamedTuple):
    """One matrix of every expert; see `pack_matrix`.

    codes [experts, out / 64, K / 128, 2, 128, 16] uint8; exponents [experts, out / 64, K / 128, 64]
    int32, of four groups each; base [experts, out] fp32.
    """

    codes: Tensor
    exponents: Tensor
    base: Tensor


class PackedExperts(NamedTuple):
    """Both matrices in the order in which threads read them, and what that changed."""

    w13: PackedMatrix
    w2: PackedMatrix
    inner: int
    rounded: Rounded = _EXACT


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


def _smaller_codes(device: torch.device) -> Tensor:
    """[6, 16] uint8: the code nearest to a code divided by 2^n, ties to the even one.

    Divided by 2^5 and more all are zero.
    """
    sizes = torch.tensor(_SIZES, device=device)
    wanted = sizes / torch.pow(2.0, torch.arange(6, device=device))[:, None]
    away = (wanted[..., None] - sizes).abs()
    odd = torch.arange(8, device=device) % 2
    nearest = (2 * away + odd * 2.0**-20).argmin(-1)  # all distances are multiples of 2^-7
    return torch.cat((nearest, nearest + 8), 1).to(torch.uint8)


def _fit(codes: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor, Rounded]:
    """Codes, exponent of every group (0 where all codes are zero) and base scale byte of every row.

    Args:
        codes: [out, K / 32, 32] uint8, one a byte.
        scale: E8M0 bytes, [out, K / 32].

    Raises:
        ValueError: a scale is no number, or a base is too large.
    """
    used = (codes & 7).amax(-1) > 0
    byte = scale.to(torch.int32)
    top = torch.where(used, byte, 0).amax(1)
    base = torch.maximum(torch.where(used, byte, 255).amin(1), top - _OCTAVES)
    base = torch.where(used.any(1), base, 127)
    above = torch.where(used, byte - base[:, None], 0)  # the base; negative: below it
    most, high, low = torch.stack((top.max(), base.max(), above.min())).tolist()
    if most == 255:
        raise ValueError("experts: FP4 scale byte 255 is no number (E8M0); mend the checkpoint")
    if high > _LARGEST_SCALE:
        raise ValueError(
            f"experts: FP4 scale byte {high} is above {_LARGEST_SCALE}; use another "
            "implementation of experts (`deepinfer ops` names them)"
        )
    rounded = _EXACT._replace(of=scale.numel())
    if low < 0:
        smaller = _smaller_codes(codes.device)[(-above).clamp(0, 5)[..., None], codes.int()]
        codes, rounded = smaller, _changes(codes, smaller, above)
    return codes, above.clamp(min=0).to(torch.uint8), base, rounded


def _changes(codes: Tensor, smaller: Tensor, above: Tensor) -> Rounded:
    """How codes differ from those that take their place where `above` is negative."""
    sizes, above = torch.tensor(_SIZES, device=codes.device), above[..., None]
    stored = sizes[(codes & 7).int()] * torch.pow(2.0, above)
    kept = sizes[(smaller & 7).int()] * torch.pow(2.0, above.clamp(min=0))
    away = (stored - kept).abs().amax(-1)
    error = away.amax(1) / stored.amax((1, 2)).clamp(min=2.0**-9)  # rows of zeros have none
    return Rounded(int((away > 0).sum()), away.numel(), float(error.max()))


def pack_matrix(codes: Tensor, scale: Tensor) -> tuple[PackedMatrix, Rounded]:
    """Reorder one FP4 matrix so that a thread's part of a tile is 16 neighbouring bytes.

    Rows go in blocks of 64, columns in steps of 128 of two chunks of 64, of which a thread has four
    words: two groups of 32 columns, of each rows r and r + 8. The order inside a block is that of
    wgmma's A operand in registers.

    Args:
        codes: [out, K / 2] uint8, out a multiple of 64, K of 128.
        scale: [out, K / 32] uint8.

    Returns:
        Codes, exponents and base of one expert, as `PackedMatrix` has them (without its first
        axis): the FP8 numbers of a row times its base are the weight, but for what was rounded.

    Raises:
        ValueError: a scale does not fit, or a size does not fit the tiles.
    """
    out, columns = codes.shape[0], 2 * codes.shape[1]
    if out % 64 or columns % 128:
        raise ValueError(f"experts: [{out}, {columns}] is no multiple of [64, 128]; use reference")
    nibbles = torch.stack((codes & 15, codes >> 4), dim=-1).view(out, columns // 32, 32)
    nibbles, exponents, base, rounded = _fit(nibbles, scale)
    # axes: block, 4 warps, row bit 3, 8 rows | step, chunk, group, half, 4 lanes, 4 codes
    split = nibbles.view(out // 64, 4, 2, 8, columns // 128, 2, 2, 2, 4, 4)
    words = _words(split.permute(0, 4, 5, 1, 3, 8, 6, 2, 7, 9))
    packed = words.contiguous().view(torch.uint8).view(out // 64, columns // 128, 2, 128, 16)
    steps = exponents.view(out // 64, 64, columns // 128, 4).transpose(1, 2).contiguous()
    factor = ((base + _LEAST) << 23).view(torch.float32)
    return PackedMatrix(packed, steps.view(torch.int32).squeeze(-1), factor), rounded


def _stacked(matrices: list[tuple[PackedMatrix, Rounded]]) -> tuple[PackedMatrix, Rounded]:
    rounded = reduce(Rounded.and_also, (r for _, r in matrices))
    parts = zip(*(matrix for matrix, _ in matrices), strict=True)
    return PackedMatrix(*(torch.stack(part) for part in parts)), rounded


def pack(weights: ExpertWeights) -> PackedExperts:
    """Stacked FP4 experts in kernel order; four bytes more for each row.

    Raises:
        ValueError: the weights are not FP4, or `pack_matrix` refuses one.
    """
    w13, w2 = weights.w13, weights.w2
    if not (isinstance(w13, Fp4Weight) and isinstance(w2, Fp4Weight)):
        raise ValueError("experts: the triton kernels take FP4 weights only; use reference")
    upper = [pack_matrix(_slabs(c), _slabs(s)) for c, s in zip(w13.codes, w13.scale, strict=True)]
    lower = [pack_matrix(c, s) for c, s in zip(w2.codes, w2.scale, strict=True)]
    (packed13, first), (packed2, second) = _stacked(upper), _stacked(lower)
    inner = w2.codes.shape[-1] * 2
    return PackedExperts(packed13, packed2, inner, first.and_also(second))
