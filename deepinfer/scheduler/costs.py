"""How long a step of so many tokens takes, learned from steps that ran.

A curve over the tokens that a step computes, padding included. Knows nothing of what they are.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

TRUSTED = 3  # times of one size until it counts: the first run and the capture are slow
_KEPT = 9  # times kept a size
_EXACT = 64  # sizes up to it have a place of their own; then 16 places an octave
_REFRESH = 16  # times until the curve follows
# Before sizes differ enough to tell, half of a step's time is taken to grow with its tokens.
_GROWING = 0.5
_HOLD = 0.1  # as if one size at that distance from the mean (in means, squared) were measured so


class CostCurve:
    """Seconds over tokens: straight between measured sizes, rising nowhere less than before.

    Beyond the measured sizes it goes on with the slope of a line through all of them. Graphs have
    fixed sizes, so that only measured ones are asked for and the curve is a staircase.
    """

    def __init__(self) -> None:
        self._curve: _Curve | None = None
        self._times: dict[int, _Times] = {}
        self._near: Counter[int] = Counter()
        self._since = 0

    @property
    def known(self) -> bool:
        """Whether any step was timed."""
        return bool(self._times)

    def add(self, tokens: int, seconds: float) -> None:
        """Learn from a step.

        Args:
            tokens: computed in it, >= 1.
            seconds: how long it took; 0 or less says nothing.
        """
        if seconds <= 0:
            return
        place = _place(tokens)
        times = self._times.get(place)
        if times is None:
            times = self._times[place] = _Times()
        times.add(tokens, seconds)
        self._near[_cell(tokens, 2)] += 1
        self._since += 1
        if self._since >= _REFRESH or self._near.total() <= _REFRESH:
            self._curve = None

    def near(self, tokens: int) -> int:
        """How many steps of about so many tokens, within a quarter of an octave, were timed."""
        return self._near[_cell(tokens, 2)]

    def seconds(self, tokens: NDArray[np.int64]) -> Floats:
        """How long steps take, > 0; only where `known`.

        Args:
            tokens: [n] of each, ascending.
        """
        if self._curve is None:
            self._curve = self._refreshed()
            self._since = 0
        x, y, slope, least = self._curve
        found = np.interp(tokens, x, y)
        if tokens[0] < x[0] or tokens[-1] > x[-1]:
            beyond = np.minimum(tokens - x[0], 0) + np.maximum(tokens - x[-1], 0)
            found = np.maximum(found + slope * beyond, least)
        return found

    def _refreshed(self) -> _Curve:
        trusted = [times for times in self._times.values() if len(times) >= TRUSTED]
        points = sorted((t.tokens, t.seconds) for t in trusted or self._times.values())
        x, y = np.array(points).T
        # Noise must not make a larger step look faster; the least keeps times positive.
        return _Curve(x, np.maximum.accumulate(y), _slope(x, y), 1e-3 * float(y[0]))


class _Curve(NamedTuple):
    """Measured points, ascending; seconds a token beyond them; no time is less than `least`."""

    x: Floats
    y: Floats
    slope: float
    least: float


class _Times:
    """The newest times of one size."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []
        self.tokens = 0.0  # mean size

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, tokens: int, seconds: float) -> None:
        if len(self._newest) == _KEPT:
            self._sorted.remove(self._newest.popleft())
        self._newest.append(seconds)
        insort(self._sorted, seconds)
        self.tokens += (tokens - self.tokens) / len(self._sorted)

    @property
    def seconds(self) -> float:
        """The lower quartile: whatever disturbs a step makes it slower."""
        return self._sorted[len(self._sorted) // 4]


def _place(tokens: int) -> int:
    """Sizes that are told apart."""
    return tokens if tokens <= _EXACT else _cell(tokens, 4)


def _cell(tokens: int, bits: int) -> int:
    """Number of the cell, of 2**bits an octave, that a size lies in; ascending."""
    shift = tokens.bit_length() - 1 - bits
    return (shift << bits) + (tokens >> shift if shift >= 0 else tokens << -shift) + (1 << 16)


def _slope(x: Floats, y: Floats) -> float:
    """Seconds a token of the line through all points, >= 0, held a little to `_GROWING`."""
    centre, level = float(x.mean()), float(y.mean())
    prior, weight = _GROWING * level / centre, _HOLD * centre**2
    spread = float(((x - centre) ** 2).sum())
    found = float(((x - centre) * (y - level)).sum()) + weight * prior
    return max(found / (spread + weight), 0.0)
