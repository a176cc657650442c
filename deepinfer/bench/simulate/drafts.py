"""Made-up drafts: whether the draft for a position is right, and how sure the drafter says it is.

Both are functions of the request and the position alone, so that two settings meet equal luck.
Knows nothing of steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from deepinfer.bench.simulate.trace import VOCABULARY, stream_ids

Floats = NDArray[np.float64]

SURE = 12.0  # logits of drafts that are always or never right
_NODES = np.polynomial.hermite_e.hermegauss(40)  # for means over a normal distribution


class DraftLaw:
    """Drafts whose chance of being right varies from position to position, and is told.

    The logit of the chance is normal; what is told is that logit times `boast`.

    Args:
        acceptance: mean chance of a draft whose predecessors in its block are right, 0..1; of
            several numbers each request has one.
        spread: standard deviation of the logit.
        boast: more than 1 = the drafter is too sure of itself.
    """

    def __init__(self, acceptance: Sequence[float], spread: float = 1.2, boast: float = 1.0):
        self._centres = np.array([centre(each, spread) for each in acceptance], np.float64)
        self._spread, self._boast = spread, boast

    def draw(
        self, streams: NDArray[np.uint64], positions: NDArray[np.uint64]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Whether drafts are right if those before them are, and the logits that are told.

        Args:
            streams: [n, 1] of the requests.
            positions: [n, depths] of the drafts.
        """
        whose = (streams % np.uint64(len(self._centres))).astype(np.int64)
        middle: Floats = self._centres[whose]
        with np.errstate(over="ignore"):
            luck, size, turn = (
                (stream_ids(~streams * np.uint64(i), positions) + 0.5) / VOCABULARY
                for i in (1, 3, 5)
            )
        normal = np.sqrt(-2 * np.log(size)) * np.cos(2 * np.pi * turn)  # Box and Muller
        logits = np.clip(middle + self._spread * normal * (np.abs(middle) < SURE), -SURE, SURE)
        told = (self._boast * logits).astype(np.float32)
        never, always = middle <= -SURE, middle >= SURE
        return ((luck < 0.5 + 0.5 * np.tanh(logits / 2)) & ~never) | always, told


def centre(acceptance: float, spread: float) -> float:
    """The mean of normal logits whose mean probability is `acceptance`."""
    if acceptance in (0, 1):
        return SURE if acceptance else -SURE
    nodes, weights = _NODES
    low, high = -SURE, SURE
    for _ in range(50):
        middle = (low + high) / 2
        mean = (weights * (0.5 + 0.5 * np.tanh((middle + spread * nodes) / 2))).sum()
        low, high = (middle, high) if mean / weights.sum() < acceptance else (low, middle)
    return (low + high) / 2
