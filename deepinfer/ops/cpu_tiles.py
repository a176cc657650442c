"""What the CPU implementations share: products of decoded weights, and gathering.

Every value that a quantised weight can hold fits bf16, so decoded weights are kept in bf16 (2
bytes a number) and widened to float64 only while they are multiplied. Sums therefore run
in float64 as in the references, and the order in which a library adds is rounded away: no fixed
row tile is needed for a row to keep its bits. Knows no operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deepinfer.ops.cpu_codes import decoded
from deepinfer.ops.formats import (
    Fp4Weight,
    Fp8Weight,
    Quantised,
    dequantise_fp4_weight,
    dequantise_fp8_weight,
)
from deepinfer.ops.products import WIDE

_WIDE_ELEMENTS = 1 << 19  # of a weight, widened at a time: 4 MiB, and a bound on memory


def serves(*, arch: str, quantised: bool, **_facts: object) -> str | None:
    """Refuse all but the release's numerics on a CPU."""
    if arch != "cpu":
        return f"runs on the CPU, not on {arch}"
    return None if quantised else "serves quantised numerics only"


def hold(weight: Tensor) -> Tensor:
    """A decoded fp32 weight in bf16 if that loses nothing, else as it is.

    Only block scales at the ends of the E8M0 range leave values that bf16 cannot hold.
    """
    narrow = weight.to(torch.bfloat16)
    return narrow if torch.equal(narrow.to(torch.float32), weight) else weight


def hold_fp8(weight: Fp8Weight | Tensor) -> Tensor:
    """Decode an FP8 weight [out, in] once, at load; a plain one stays."""
    return hold(dequantise_fp8_weight(weight)) if isinstance(weight, Fp8Weight) else weight


def hold_fp4(weight: Fp4Weight | Tensor) -> Tensor:
    """Decode stacked FP4 weights [experts, out, in] once, one expert at a time."""
    if not isinstance(weight, Fp4Weight):
        return weight
    pairs = zip(weight.codes, weight.scale, strict=True)
    return torch.stack([hold(dequantise_fp4_weight(Fp4Weight(c, s))) for c, s in pairs])


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, K] float64 times weight [out, K] transposed, rounded once: fp32 [rows, out]."""
    step = max(1, _WIDE_ELEMENTS // weight.shape[1])
    if len(weight) <= step:
        return (x @ weight.to(WIDE).mT).to(torch.float32)
    return torch.cat([(x @ w.to(WIDE).mT).to(torch.float32) for w in weight.split(step)], dim=-1)


def wide_input(x: Tensor | Quantised) -> Tensor:
    """The decoded input of a quantised product in float64; a plain `x` is quantised first."""
    return decoded(x).to(WIDE)


def gather(view: Tensor, outer: Tensor, inner: Tensor) -> Tensor:
    """view[outer, inner] of a byte view [a, b, bytes], moved in the widest words that fit.

    Args:
        view: a view whose last axis is dense.
        outer: int64, or a shape that broadcasts with `inner`; in range.
        inner: int64, likewise.
    """
    sizes = (view.shape[-1], view.storage_offset(), *view.stride()[:-1])
    for word, width in ((torch.int64, 8), (torch.int32, 4)):
        if all(size % width == 0 for size in sizes):
            return _gather(view.view(word), outer, inner).view(torch.uint8)
    return _gather(view, outer, inner)


def _gather(view: Tensor, outer: Tensor, inner: Tensor) -> Tensor:
    """As `gather`. Copying whole rows by one index is many times faster than two indices are."""
    a, b, width = view.shape
    far, near, _ = view.stride()
    # Rows that start at every word, and so overlap: only those that exist are taken.
    rows = view.as_strided(((a - 1) * far + (b - 1) * near + 1, width), (1, 1))
    index = outer * far + inner * near
    return rows.index_select(0, index.flatten()).view(*index.shape, width)


def runs(slices: Sequence[tuple[int, int]], least: int) -> list[tuple[int, int, bool]]:
    """Token ranges (first, after last, is one long slice), neighbouring short slices joined.

    A slice is long from `least` tokens on; which way a token goes must not change its bits.
    """
    found: list[tuple[int, int, bool]] = []
    for first, last in slices:
        long = last - first >= least
        if found and not long and not found[-1][2]:
            found[-1] = (found[-1][0], last, False)
        else:
            found.append((first, last, long))
    return found
