"""What the order class "cpu_f32" shares: products in bf16 or fp32 whose rows stand alone.

A library may pick another summing order for another number of rows. The ones behind torch do so
for one row and for odd splits among threads, but not between multiples of 16 rows; so rows are
padded to whole tiles of 16, and a row's bits do not depend on the other rows, its place or the
threads. Knows no operation.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from deepinfer.ops.cpu_tiles import hold_fp4, hold_fp8
from deepinfer.ops.formats import Fp4Weight, Fp8Weight

TILE = 16  # rows, or columns of keys, that a product is padded to
_LARGEST_KEPT = 30 << 20  # bytes


@cache
def _narrow_products() -> bool:
    """Whether this processor multiplies bf16 itself; else fp32 is faster, and no less exact."""
    return torch.cpu._is_avx512_bf16_supported() or _single_tiles()


@cache
def _single_tiles() -> bool:
    """Whether every tile is multiplied alone.

    With AMX the library takes other kernels for few rows than for many (`platforms.md` 2).
    """
    return torch.cpu._is_amx_tile_supported()


@cache
def _keep_freed_memory() -> None:
    """Make the C library of Linux keep the memory of freed tensors for the next ones.

    It maps tensors of more than 128 KiB afresh, page fault by page fault, which can cost more than
    what is computed in them; until it has seen a larger one freed, up to 32 MiB.
    """
    torch.empty(_LARGEST_KEPT, dtype=torch.uint8)


def _held(weight: Tensor) -> Tensor:
    _keep_freed_memory()
    return weight if _narrow_products() else weight.to(torch.float32)


def keep_fp8(weight: Fp8Weight | Tensor) -> Tensor:
    """Decode an FP8 weight [out, in] once, at load: to bf16, or fp32 where that is faster."""
    return _held(hold_fp8(weight))


def keep_fp4(weight: Fp4Weight | Tensor) -> Tensor:
    """Decode stacked FP4 weights [experts, out, in] once, likewise."""
    return _held(hold_fp4(weight))


def keep_plain(weight: Tensor) -> Tensor:
    """A bf16 weight [out, in] that is never quantised, likewise."""
    return _held(weight)


def whole_tiles(x: Tensor) -> Tensor:
    """x [rows, K] with zero rows up to a multiple of `TILE`."""
    return pad(x, (0, 0, 0, -len(x) % TILE)) if len(x) % TILE else x


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, K] times weight [out, K] transposed, in the dtype of `weight` with fp32 sums.

    Args:
        x: bf16, or fp32 numbers that the dtype of `weight` holds.
        weight: bf16 (the result is rounded to it) or fp32.
    """
    rows, x = len(x), whole_tiles(x).to(weight.dtype)
    if _single_tiles() and len(x) > TILE:
        return torch.cat([linear(part, weight) for part in x.split(TILE)])[:rows]
    return linear(x, weight)[:rows]


def grouped_product(x: Tensor, weight: Tensor) -> Tensor:
    """As `product` for each group: x [rows, groups, K], weight [groups, out, K].

    Returns:
        [rows, groups, out].
    """
    if len(x) > TILE:  # copying many rows together costs more than calling group by group
        return torch.stack([product(x[:, g], w) for g, w in enumerate(weight)], dim=1)
    tile = whole_tiles(x.flatten(1)).view(-1, *x.shape[1:]).to(weight.dtype)
    return torch.bmm(tile.transpose(0, 1), weight.mT).transpose(0, 1)[: len(x)]
