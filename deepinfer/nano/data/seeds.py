"""Seeds of the evaluation's question sets that belong to training.

Evaluations use seeds below `FIRST`, which is what a person types. Knows no question set.
"""

from __future__ import annotations

from deepinfer.eval.draw import Draw

FIRST = 1 << 40


def training_seed(draw: Draw) -> int:
    """A seed that no evaluation uses."""
    return draw.number(FIRST, 2 * FIRST - 1)
