"""What a run does when: lengths of rows, the far entries it attends to, the size of steps.

Everything is a function of progress, the part of the run's time that has passed. It does not know
networks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """Until progress `until`, steps take rows of `lengths` in turn; `sparse`: only entries that the
    indexers select are attended to."""

    until: float
    lengths: tuple[int, ...]
    sparse: bool


# First short documents and all entries; then long ones; at last entries as the engine selects.
PHASES = (
    Phase(0.55, (1024,), sparse=False),
    Phase(0.72, (1024, 1024, 4096), sparse=False),
    Phase(1.00, (1024, 1024, 4096), sparse=True),
)
LENGTHS = tuple(sorted({length for phase in PHASES for length in phase.lengths}))
WARM_UP = 100  # steps
FALL_FROM = 0.4
LAST = 0.02


def phase(progress: float) -> Phase:
    """The phase at a progress in [0, 1]."""
    return next(p for p in PHASES if progress < p.until or p is PHASES[-1])


def length_of(step: int, progress: float) -> int:
    """Tokens of a row in this step."""
    lengths = phase(progress).lengths
    return lengths[step % len(lengths)]


def factor(step: int, progress: float) -> float:
    """What multiplies all rates: rises over the first steps, falls to `LAST` at the end."""
    rise = min(1.0, (step + 1) / WARM_UP)
    fall = min(1.0, (1 - progress) / (1 - FALL_FROM))
    return rise * (LAST + (1 - LAST) * max(0.0, fall))
