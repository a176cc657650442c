"""How long a step of so many tokens takes, learned from steps that ran.

A curve over the tokens that a step computes, padding included. Knows nothing of what they are.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

TRUSTED = 3  # times of one size until it counts: the first run and the capture are slow
_KEPT = 9  # times kept a size
_EXACT = 64  # sizes up to it have a place of their own; then an octave has 16 places
_REFRESH = 16  # times until the curve follows
# Before sizes differ enough to tell, half of a step's time is taken to grow with its tokens.
_GROWING = 0.5
_HOLD = 0.1  # as if one size at that distance from the mean (in means, squared) were measured so


class CostCurve:
    """Seconds over tokens: flat over each measured place, straight between, nowhere falling.

    Beyond the measured sizes it goes on with the slope of a line through all of them. Graphs have
    fixed sizes, so that only measured ones are asked for and the curve is a staircase.
    """

    def __init__(self) -> None:
        self._curve: _Curve | None = None
        self._times: dict[_Place, _Times] = {}
        self._since = self._added = 0

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
        times.add(seconds)
        self._added += 1
        self._since += 1
        # A size that has just come to count is known at once: it was asked for.
        if self._since >= _REFRESH or self._added <= _REFRESH or len(times) == TRUSTED:
            self._curve = None

    def times(self, tokens: int) -> int:
        """How many of the newest times are of about so many tokens, up to 9."""
        times = self._times.get(_place(tokens))
        return 0 if times is None else len(times)

    def seconds(self, tokens: Integers) -> Floats:
        """How long steps take, > 0; only where `known`.

        Args:
            tokens: [n] of each, ascending.
        """
        x, y, slope, least = self._fitted()
        found = np.interp(tokens, x, y)
        if tokens[0] < x[0] or tokens[-1] > x[-1]:
            beyond = np.minimum(tokens - x[0], 0) + np.maximum(tokens - x[-1], 0)
            found = np.maximum(found + slope * beyond, least)
        return found

    def at_best(self, tokens: Integers) -> Floats:
        """What steps take if all goes well: no larger step is faster than a measured smaller one.

        Below all measured sizes it takes half of its share, which is worth a look.

        Args:
            tokens: [n] of each, ascending.
        """
        x, y, *_ = self._fitted()
        below = np.searchsorted(x, tokens, side="right") - 1
        return np.where(below >= 0, y[below], 0.5 * y[0] * np.maximum(tokens, 1) / x[0])

    def unmeasured(self, tokens: Integers, place: int) -> int | None:
        """Which size to time to learn whether `tokens[place]` is as fast as `at_best` says.

        Args:
            tokens: [n] sizes that can be had, ascending.
            place: index of one of them.

        Returns:
            the index of the one in the middle between the measured sizes around it, or the
            outermost beyond them; None if it is measured itself.
        """
        x = self._fitted().x  # first and last of each measured place
        right = int(np.count_nonzero(x <= tokens[place]))
        if right % 2 or (right and x[right - 1] == tokens[place]):
            return None
        first = int(np.count_nonzero(tokens <= x[right - 1])) if right else 0
        end = int(np.count_nonzero(tokens < x[right])) if right < len(x) else len(tokens)
        if 0 < right < len(x):
            return (first + end) // 2
        return end - 1 if right else first

    def _fitted(self) -> _Curve:
        if self._curve is None:
            self._curve = self._refreshed()
            self._since = 0
        return self._curve

    def _refreshed(self) -> _Curve:
        points = [(p, t.seconds) for p, t in self._times.items() if len(t) >= TRUSTED]
        if not points:
            points = [(place, times.seconds) for place, times in self._times.items()]
        points.sort()
        places = np.array([place for place, _ in points], np.float64)
        y = np.array([seconds for _, seconds in points])
        # Noise must not make a larger step look faster; the least keeps times positive.
        rising = np.maximum.accumulate(y).repeat(2)
        return _Curve(places.ravel(), rising, _slope(places.mean(axis=1), y), 1e-3 * float(y[0]))


class _Curve(NamedTuple):
    """Measured points, ascending; seconds a token beyond them; no time is less than `least`."""

    x: Floats
    y: Floats
    slope: float
    least: float


class _Times:
    """The newest times of one place."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, seconds: float) -> None:
        if len(self._newest) == _KEPT:
            self._sorted.remove(self._newest.popleft())
        self._newest.append(seconds)
        insort(self._sorted, seconds)

    @property
    def seconds(self) -> float:
        """The lower quartile: whatever disturbs a step makes it slower."""
        return self._sorted[len(self._sorted) // 4]


class _Place(NamedTuple):
    """Sizes that are not told apart. The last is a multiple of how many they are, as the tiles
    are in which a device computes."""

    first: int
    last: int


def last_of_places(tokens: int, most: int) -> Integers:
    """The largest size of each place from that of `tokens` on, up to `most` and that one too."""
    begin, end = np.searchsorted(_LAST, (tokens, most))
    return np.append(_LAST[begin:end], most)


def _place(tokens: int) -> _Place:
    if tokens <= _EXACT:
        return _Place(tokens, tokens)
    shift = (tokens - 1).bit_length() - 5
    first = (tokens - 1 >> shift) << shift
    return _Place(first + 1, first + (1 << shift))


_LAST = np.array(sorted({_place(n).last for n in range(1, 1 << 16)}), np.int64)


def _slope(x: Floats, y: Floats) -> float:
    """Seconds a token of the line through all points, >= 0, held a little to `_GROWING`."""
    centre, level = float(x.mean()), float(y.mean())
    prior, weight = _GROWING * level / centre, _HOLD * centre**2
    spread = float(((x - centre) ** 2).sum())
    found = float(((x - centre) * (y - level)).sum()) + weight * prior
    return max(found / (spread + weight), 0.0)
