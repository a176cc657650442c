"""Draws that give the same values on every machine and every Python, named instead of numbered.

Knows nothing of what is drawn.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


def seed_of(*names: object) -> int:
    """A seed of 63 bits, a function of the names' texts alone."""
    text = "\x1f".join(str(name) for name in names)
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big") >> 1


class Draw:
    """A stream of draws; streams of different names are independent.

    Of the generator's methods only `random` promises the same numbers in every Python.
    """

    def __init__(self, *names: object):
        self._random = random.Random(seed_of(*names))

    def number(self, low: int, high: int) -> int:
        """An integer, low <= it <= high."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, options: Sequence[Item]) -> Item:
        """One of the options."""
        return options[self.number(0, len(options) - 1)]

    def several(self, options: Sequence[Item], count: int) -> list[Item]:
        """`count` different options in drawn order; `len(options)` of them is a shuffle."""
        left = list(options)
        return [left.pop(self.number(0, len(left) - 1)) for _ in range(count)]
