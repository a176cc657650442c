"""Temperatures that make the drafter's confidences true, learned while requests run.

A confidence is a logit: how likely a draft is right if all drafts before it in its block are. Each
depth of a block has its own temperature, fitted from the trials in which the drafts before were
right (sequential temperature scaling, `dspark-and-replay.md` 5.5). Knows nothing of requests.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_LIMIT = 12.0  # logits beyond it share the outermost bins
_BINS = 48  # of logits, a depth
_MOST = 64.0  # larger logits count as this much
_GRID = np.exp2(np.linspace(-4, 4, 65))  # temperatures tried, 9 % apart: 1 % of a probability
_MEMORY = 8192  # trials a depth; with more its counts are halved after a fit, so that old ones fade
_PRIOR = 8.0  # how strongly ln T is held to that of all depths, in units of the log-likelihood
_CLASSES = 10  # of the calibration error


class Calibration:
    """Counts of trials by depth and logit, and the temperatures they ask for.

    Args:
        depths: drafts of a block.
        start: temperatures before there are trials, [depths], > 0; also the prior of the fit.

    Attributes:
        temperature: [depths] float64, what a logit is divided by.
        trials, right: [depths] int64 since the start: drafts checked after right ones, and those
            of them that were right, with or without a confidence.
    """

    def __init__(self, depths: int, start: Floats):
        assert start.shape == (depths,)
        self.temperature = start.copy()
        self.trials, self.right = np.zeros((2, depths), np.int64)
        self._start = start
        self._count, self._hits, self._logits = np.zeros((3, depths, _BINS))

    def add(
        self,
        logits: NDArray[np.float32],
        verified: NDArray[np.int32],
        accepted: NDArray[np.int32],
    ) -> None:
        """Count trials; draft d of a row is one if drafts 0..d - 1 were right.

        Args:
            logits: [n, depths] raw confidences of the drafts; 0 or not finite = none.
            verified: [n] drafts that were checked, from the first on.
            accepted: [n] how many of them were right.
        """
        depth = np.arange(len(self.temperature))
        tried = depth < np.minimum(verified, accepted + 1)[:, None]
        right = depth < accepted[:, None]
        self.trials += tried.sum(axis=0)
        self.right += right.sum(axis=0)
        told = tried & (logits != 0) & np.isfinite(logits)
        values = np.clip(logits[told], -_MOST, _MOST).astype(np.float64)
        bins = np.clip((values + _LIMIT) * (_BINS / (2 * _LIMIT)), 0, _BINS - 1).astype(np.int64)
        place = np.nonzero(told)[1] * _BINS + bins
        for sums, weights in (
            (self._count, None),
            (self._hits, right[told].astype(np.float64)),
            (self._logits, values),
        ):
            sums += np.bincount(place, weights, sums.size).reshape(sums.shape)

    def fit(self) -> bool:
        """Set `temperature` from the counts: most likely, held to the fit of all depths together.

        Returns:
            whether it changed.
        """
        count = self._count
        if not count.any():
            return False
        scaled = self._means() / _GRID[:, None, None]
        # The negative log-likelihood of a bin: n ln(1 + e^z) - hits z.
        softplus = np.maximum(scaled, 0) + np.log1p(np.exp(-np.abs(scaled)))
        loss = (count * softplus - self._hits * scaled).sum(axis=-1)
        grid = np.log(_GRID)
        centre = float(np.log(self._start).mean())
        together = float(grid[np.argmin(loss.sum(axis=1) + _PRIOR / 2 * (grid - centre) ** 2)])
        # What depths have in common is learned from all; what the start said of each is kept.
        own = np.log(self._start) - centre + together
        best = np.argmin(loss + _PRIOR / 2 * (grid[:, None] - own) ** 2, axis=0)
        found = _GRID[best]
        found[count.sum(axis=1) == 0] = np.exp(own)[count.sum(axis=1) == 0]
        changed = not np.array_equal(found, self.temperature)
        self.temperature = found
        full = count.sum(axis=1) > _MEMORY
        for sums in (self._count, self._hits, self._logits):
            sums[full] /= 2
        return changed

    def rate(self) -> Floats:
        """[depths] part of the trials that were right; 1/2 where there are few."""
        return (self.right + 1) / (self.trials + 2)

    def error(self) -> float:
        """Expected calibration error, 0..1; 0 before there are trials.

        Over ten classes of equal width of the calibrated probability: the distance of mean
        probability and part that was right, weighted by trials.
        """
        total = self._count.sum()
        if not total:
            return 0.0
        told = probability(self._means(), self.temperature[:, None])
        classes = np.minimum(told * _CLASSES, _CLASSES - 1).astype(np.int64).ravel()
        expected = np.bincount(classes, (self._count * told).ravel(), _CLASSES)
        happened = np.bincount(classes, self._hits.ravel(), _CLASSES)
        return float(np.abs(expected - happened).sum() / total)

    def _means(self) -> Floats:
        """[depths, bins] mean logit; 0 in empty bins."""
        return np.divide(
            self._logits, self._count, out=np.zeros_like(self._logits), where=self._count > 0
        )


def probability(logits: Floats | NDArray[np.float32], temperature: Floats) -> Floats:
    """Calibrated probability of logits, without overflow."""
    return 0.5 + 0.5 * np.tanh(logits * (0.5 / temperature))


def temperatures(depths: int, said: float | tuple[float, ...]) -> Floats:
    """Start temperatures: one for all depths, or one each, the last one for what follows."""
    values = (said,) if isinstance(said, (int, float)) else said
    assert values
    assert all(math.isfinite(value) and value > 0 for value in values)
    return np.array([values[min(depth, len(values) - 1)] for depth in range(depths)], np.float64)
