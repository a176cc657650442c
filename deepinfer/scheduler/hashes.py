"""A language of hashes: the next token is a hash of all tokens before it, within what may come.

Knows nothing of rows and pages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deepinfer.step import StepMasks

VOCABULARY = 257
WORD = (1 << 64) - 1
_START = 0x9E37_79B9_7F4A_7C15


def mix(value: int) -> int:
    """The finaliser of SplitMix64: 64 bits to 64 bits, one to one."""
    value = (value ^ (value >> 30)) * 0xBF58_476D_1CE4_E5B9 & WORD
    value = (value ^ (value >> 27)) * 0x94D0_49BB_1331_11EB & WORD
    return value ^ (value >> 31)


def fold(state: int, token: int) -> int:
    """Running hash after one more token."""
    return mix((state + (token + 1) * _START) & WORD)


def choose(
    state: int, seed: int, barred: Collection[int], vocabulary: int, mask: NDArray[np.int32] | None
) -> int:
    """The first token from a drawn one on that may come, -1 if there is none."""
    first = mix(state ^ mix(seed & WORD)) % vocabulary
    for step in range(vocabulary):
        token = (first + step) % vocabulary
        legal = mask is None or int(mask[token >> 5]) >> (token & 31) & 1
        if legal and token not in barred:
            return token
    return -1


def next_token(
    prefix: Iterable[int],
    seed: int,
    *,
    barred: Collection[int] = (),
    vocabulary: int = VOCABULARY,
    mask: NDArray[np.int32] | None = None,
) -> int:
    """The token that a shadow device generates after `prefix`, -1 if none may come.

    Args:
        prefix: all tokens before it.
        seed: of the request.
        barred: ids that may not come (end and stop ids before `min_tokens`).
        vocabulary: ids are 0..vocabulary - 1.
        mask: bits of those that may, as in `StepMasks.words`; None = all.
    """
    state = 0
    for token in prefix:
        state = fold(state, token)
    return choose(state, seed, barred, vocabulary, mask)


class Mask(NamedTuple):
    """Masks of a row; `legal` drafts may be verified, -1 = nothing may be generated."""

    legal: int = 1 << 30
    words: NDArray[np.int32] | None = None

    def at(self, place: int) -> NDArray[np.int32] | None:
        """The mask behind so many drafts, None = everything may come."""
        return None if self.words is None else self.words[place]


def mask_of(masks: StepMasks | None, row: int) -> Mask:
    """The masks of one row of a step."""
    if masks is None or row in masks.free:
        return Mask()
    if row in masks.late:
        return Mask(-1)
    found = np.flatnonzero(masks.row == row)
    if not len(found):  # not a row of the plan's `masked`
        return Mask()
    return Mask(int(masks.legal[found[0]]), masks.words[found[0]])
