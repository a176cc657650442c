"""The first rows of every block of rows, one Triton launch for all tensors; bytes are copied.

Knows nothing of drafts.
"""
# Triton is optional and untyped: a checker may not find it.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportIndexIssue=false

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from deepinfer.ops.portable import refuses_arch

_MOST = 10  # tensors a launch
_PARTS = 4  # programs a row
_SIZE: tl.constexpr = tl.constexpr(1024)  # elements that a program copies at a time


@triton.jit
def _copy(from_ptr, to_ptr, source, row, WIDTH: tl.constexpr):
    """WIDTH elements of a row, those of this program's part."""
    size: tl.constexpr = min(_SIZE, triton.next_power_of_2(WIDTH))
    for first in range(tl.program_id(1) * size, WIDTH, tl.num_programs(1) * size):
        at = first + tl.arange(0, size)
        value = tl.load(from_ptr + source * WIDTH + at, at < WIDTH)
        tl.store(to_ptr + row * WIDTH + at, value, at < WIDTH)


@triton.jit
def _leading(
    a, b, c, d, e, f, g, h, i, j, to_a, to_b, to_c, to_d, to_e, to_f, to_g, to_h, to_i, to_j,
    BLOCK: tl.constexpr, COUNT: tl.constexpr,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr, E: tl.constexpr,
    F: tl.constexpr, G: tl.constexpr, H: tl.constexpr, I: tl.constexpr, J: tl.constexpr,
):  # fmt: skip
    """One row of each tensor; a width of 0 is no tensor."""
    gdc_wait()
    gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    source = row // COUNT * BLOCK + row % COUNT
    _copy(a, to_a, source, row, A)
    if B:
        _copy(b, to_b, source, row, B)
    if C:
        _copy(c, to_c, source, row, C)
    if D:
        _copy(d, to_d, source, row, D)
    if E:
        _copy(e, to_e, source, row, E)
    if F:
        _copy(f, to_f, source, row, F)
    if G:
        _copy(g, to_g, source, row, G)
    if H:
        _copy(h, to_h, source, row, H)
    if I:
        _copy(i, to_i, source, row, I)
    if J:
        _copy(j, to_j, source, row, J)


def _flat(rows: Tensor) -> Tensor:
    """Rows as words of 32 bits, or as bytes where they are no whole words."""
    data = rows.contiguous().view(len(rows), -1).view(torch.uint8)
    return data if data.shape[1] % 4 or data.data_ptr() % 4 else data.view(torch.int32)


def leading_rows(tensors: Sequence[Tensor], *, block: int, count: int) -> tuple[Tensor, ...]:
    """As the reference.

    Raises:
        ValueError: there are more than ten tensors.
    """
    if len(tensors) > _MOST:
        raise ValueError(f"leading_rows: {len(tensors)} tensors; takes at most {_MOST} a call")
    kept = len(tensors[0]) // block * count
    outs = tuple(rows.new_empty((kept, *rows.shape[1:])) for rows in tensors)
    if not kept:
        return outs
    given = [_flat(rows) for rows in tensors]
    taken = [
        to.view(kept, -1).view(torch.uint8).view(rows.dtype)
        for to, rows in zip(outs, given, strict=True)
    ]
    widths = [rows.shape[1] for rows in given]
    none = _MOST - len(given)
    _leading[(kept, _PARTS)](
        *given, *given[:1] * none, *taken, *taken[:1] * none, block, count, *widths, *[0] * none,
        num_warps=4, launch_pdl=True,
    )  # fmt: skip
    return outs


def pack(weights: Tensor) -> Tensor:
    """There is nothing to pack."""
    return weights


def refuses(*, arch: str, **_facts: object) -> str | None:
    """None if the kernel serves, else why not; facts as `Op.bind` passes them."""
    return refuses_arch(arch)
