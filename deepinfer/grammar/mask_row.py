"""One row of a mask: int32 words, in which bit i of word w stands for id 32 w + i.

It does not know which ids are legal.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

WORD_BITS = 32
_BITS = tuple((np.uint32(1) << np.arange(WORD_BITS, dtype=np.uint32)).view(np.int32))


def all_ones(size: int) -> NDArray[np.int32]:
    """A row that allows the ids below `size`, and no bit beyond; int32, read-only."""
    row = np.full(-(-size // WORD_BITS), -1, np.int32)
    if used := size % WORD_BITS:
        row[-1] = (1 << used) - 1
    row.flags.writeable = False
    return row


def allows(row: NDArray[np.int32], id: int) -> bool:
    """Whether the bit of `id`, which the row has, is set."""
    return bool(row[id >> 5] & _BITS[id & 31])


def allow(row: NDArray[np.int32], ids: Iterable[int]) -> None:
    """Set the bits of `ids`."""
    for id in ids:
        row[id >> 5] |= _BITS[id & 31]


def forbid(row: NDArray[np.int32], ids: Iterable[int]) -> None:
    """Clear the bits of `ids`."""
    for id in ids:
        row[id >> 5] &= ~_BITS[id & 31]
