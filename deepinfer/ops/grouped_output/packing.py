"""FP8 weights in the order in which the threads of the Hopper kernel read them; plain torch.

Knows nothing of kernels but what one word of theirs must hold.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from deepinfer.ops.formats import Fp8Weight

_SCALES = (40, 160)  # E8M0 bytes whose decoded codes neither underflow nor overflow in bf16
LEAST_COLUMNS = 256  # Triton 3.6 fails to compile the loop of a single step


class PackedLow(NamedTuple):
    """One weight in the order in which threads read it; see `pack`.

    codes [out / 64, K / 128, 4, 128, 16] uint8; scale [out / 32, K / 128] int32, four bytes a step.
    """

    codes: Tensor
    scale: Tensor


def pack(weight: Fp8Weight | Tensor) -> PackedLow:
    """Reorder a weight so that a thread's part of 32 columns is 16 neighbouring bytes.

    The order inside a block of 64 rows is that of wgmma's A operand in registers: a word holds two
    neighbouring columns (its halves) of rows r + 8 (low byte) and r (high byte).

    Args:
        weight: codes [out, K], both multiples of 128, K at least 256.

    Raises:
        ValueError: the weight is not FP8, or a size or scale does not fit the kernel.
    """
    if not isinstance(weight, Fp8Weight):
        raise ValueError("grouped_output: the triton kernels take FP8 weights only; use reference")
    out, columns = weight.codes.shape
    if out % 128 or columns % 128 or columns < LEAST_COLUMNS:
        raise ValueError(
            f"grouped_output: [{out}, {columns}] is no multiple of [128, 128] with at least "
            f"{LEAST_COLUMNS} columns; use reference"
        )
    low, high = (int(x) for x in weight.scale.aminmax())
    if low < _SCALES[0] or high > _SCALES[1]:
        raise ValueError(
            f"grouped_output: scale bytes {low} to {high} go beyond {_SCALES}; use reference"
        )
    # axes: block, 4 warps, row bit 3, 8 rows | step, chunk, 4 words, 4 lanes, parity
    split = weight.codes.view(out // 64, 4, 2, 8, columns // 128, 4, 4, 4, 2)
    words = split.permute(0, 4, 5, 1, 3, 7, 6, 8, 2).flip(-1)
    codes = words.reshape(out // 64, columns // 128, 4, 128, 16).contiguous()
    scale = weight.scale.contiguous().view(torch.int32)
    codes[-1, -1, -1, -1, -1].item()  # waits for the copy: the kernel reads weights early
    return PackedLow(codes, scale)
