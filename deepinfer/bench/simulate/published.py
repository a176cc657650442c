"""The published decoding curve from floors and few numbers: a prediction, never a measurement.

64 GPUs, 131,072 tokens a request, 3 drafts, 75 % acceptance assumed: two points were read off a
chart, tokens a second of a GPU and of a user (performance.md 1.1, 3.8, 5.5). Knows nothing of
measured tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from deepinfer.arch import Arch
from deepinfer.bench.floors import SM100, Floors, Point, Rates

RANKS = 64
LENGTH, DRAFTS, ACCEPTANCE = 131072, 3, 0.75
POINTS: Mapping[int, float] = {8: 10.0e-3, 256: 31.6e-3}
"""Seconds of a step by requests a GPU, from both of its axes."""
SHOWN = (8, 64, 256)
Rule = Literal["sum", "max"]


@dataclass(frozen=True)
class Guess:
    """What is assumed of a GPU of the published curve.

    Attributes:
        rates: of the device.
        efficiency: part of the rate of products that is reached.
        overhead: seconds of a step for launches, skew of ranks and synchronisation.
        rule: reading and products follow each other ("sum") or overlap ("max").
    """

    rates: Rates = SM100
    efficiency: float = 0.46
    overhead: float = 7.4e-3
    rule: Rule = "sum"


def step_seconds(arch: Arch, rows: int, guess: Guess) -> float:
    """Of a step with so many requests a GPU.

    Args:
        arch: of the release.
        rows: requests a GPU.
        guess: of the device.
    """
    floor = Floors(arch, guess.rates, RANKS).decode(Point(rows, LENGTH, DRAFTS))
    products = floor.compute / guess.efficiency
    both = floor.memory + products if guess.rule == "sum" else max(floor.memory, products)
    return both + guess.overhead


class Line(NamedTuple):
    """A point of the curve: seconds of a step, published ones if there are, tokens a second."""

    rows: int
    seconds: float
    published: float | None
    user: float
    gpu: float


def curve(arch: Arch, guess: Guess) -> list[Line]:
    """The points shown."""
    lines: list[Line] = []
    for rows in SHOWN:
        seconds = step_seconds(arch, rows, guess)
        user = (1 + DRAFTS * ACCEPTANCE) / seconds
        lines.append(Line(rows, seconds, POINTS.get(rows), user, user * rows))
    return lines


CHANGES: Mapping[str, Callable[[Guess, float], Guess]] = {
    "bytes read a second": lambda g, by: replace(g, rates=replace(g.rates, read=g.rates.read * by)),
    "FLOP a second": lambda g, by: replace(g, rates=replace(g.rates, matmul=g.rates.matmul * by)),
    "FLOP a second of attention": lambda g, by: replace(
        g, rates=replace(g.rates, attention=g.rates.attention * by)
    ),
    "efficiency": lambda g, by: replace(g, efficiency=g.efficiency * by),
    "overhead": lambda g, by: replace(g, overhead=g.overhead * by),
}
"""Parameters that are varied, and how."""


def sensitivity(arch: Arch, guess: Guess, by: float = 0.2) -> dict[str, list[tuple[float, float]]]:
    """Relative change of the step with each parameter lower and higher by a part.

    Args:
        arch: of the release.
        guess: of the device.
        by: the part.

    Returns:
        parameter -> (lower, higher) at each number of `SHOWN`.
    """
    plain = [step_seconds(arch, rows, guess) for rows in SHOWN]

    def at(change: Callable[[Guess, float], Guess], factor: float) -> list[float]:
        changed = change(guess, factor)
        return [
            step_seconds(arch, rows, changed) / seconds - 1
            for rows, seconds in zip(SHOWN, plain, strict=True)
        ]

    return {
        name: list(zip(at(change, 1 - by), at(change, 1 + by), strict=True))
        for name, change in CHANGES.items()
    }
