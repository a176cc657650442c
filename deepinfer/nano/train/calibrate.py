"""Temperatures that make the drafter's confidences true on text it has not seen.

Depth by depth, among drafts whose predecessors were right (`dspark-and-replay.md` 5.5). It does not
know the network.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GRID = np.exp2(np.linspace(-3, 3, 49))


def temperatures(
    logits: NDArray[np.floating], right: NDArray[np.bool_], counted: NDArray[np.bool_]
) -> list[float]:
    """One temperature a depth, the most likely of a grid; 1 where there are no trials.

    Args:
        logits: [trials, depth] raw confidences.
        right: [trials, depth] whether the draft was what greedy decoding gives.
        counted: [trials, depth] whether it is a trial at all.
    """
    found: list[float] = []
    alive = np.ones(len(logits), dtype=bool)
    for depth in range(logits.shape[1]):
        rows = alive & counted[:, depth]
        said, hit = logits[rows, depth].astype(np.float64), right[rows, depth]
        found.append(_best(said, hit) if len(said) else 1.0)
        alive = rows & right[:, depth]
    return found


def _best(said: NDArray[np.float64], hit: NDArray[np.bool_]) -> float:
    signed = np.where(hit, -said, said)
    costs = [np.logaddexp(0.0, signed / t).mean() for t in _GRID]
    return float(_GRID[int(np.argmin(costs))])
