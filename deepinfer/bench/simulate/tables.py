"""Time of a decoding step from measured times of its operations.

Tables hold what each operation's calls of a step took at some numbers of tokens; between them both
axes are logarithmic and the line is straight, so what is constant stays constant and what grows in
proportion does so. A few constants, fitted to whole steps, stand for all that is no operation.
Knows nothing of devices.
"""

from __future__ import annotations

import json
import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from deepinfer.errors import ConfigError

_BY_EXPERTS = ("experts", "route")  # their work depends on how many experts there are
_BY_CONTEXT = ("index_select",)  # its work grows with tokens times context


class StepShape(NamedTuple):
    """A decoding step: experts of a rank, rows, tokens known a row, drafts verified a row."""

    experts: int
    rows: float
    length: float
    drafts: float

    @property
    def tokens(self) -> float:
        """Tokens computed."""
        return self.rows * (1 + self.drafts)


@dataclass(frozen=True)
class Measured:
    """A step that was timed.

    Attributes:
        shape: of it.
        seconds: it took.
        operations: (name, part) -> seconds of its calls, where they were timed too.
    """

    shape: StepShape
    seconds: float
    operations: Mapping[tuple[str, str], float]


def read_points(path: Path) -> list[Measured]:
    """The points of a file that `bench decode --json` wrote, in its order.

    Raises:
        ConfigError: it cannot be read, or holds no such records.
    """
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path} as JSON lines: {error}") from error
    return measured(cast("list[Mapping[str, Any]]", lines), str(path))


def measured(records: Iterable[Mapping[str, Any]], name: str) -> list[Measured]:
    """Points from records of `bench decode`.

    Args:
        records: of points and of operations.
        name: of where they come from, for errors.

    Raises:
        ConfigError: a point has no step time, or there is none.
    """
    seconds: dict[StepShape, float] = {}
    times: dict[StepShape, dict[tuple[str, str], float]] = {}
    for record in records:
        if "drafts" not in record:
            continue  # of prompts
        try:
            shape = StepShape(*(record[field] for field in StepShape._fields))
            if "operation" in record:
                key = record["operation"], record["part"]
                times.setdefault(shape, {})[key] = record["us"] * 1e-6
            else:
                seconds[shape] = record["step_ms"] * 1e-3
                sample = {("sample", "main"): record["sample_ms"] * 1e-3}
                times.setdefault(shape, {}).update(sample)
        except KeyError as error:
            raise ConfigError(f"{name}: a record of decoding has no {error}") from error
    if not seconds:
        raise ConfigError(f"{name}: no records of bench decode --json")
    found = [Measured(shape, seconds[shape], times[shape]) for shape in seconds]
    return [p if len(p.operations) > 1 else Measured(p.shape, p.seconds, {}) for p in found]


class Entry(NamedTuple):
    """What an operation's calls took in a step.

    Attributes:
        operation: its name.
        part: "main" or "draft".
        experts: of the rank if they count, else 0.
        at: tokens, or tokens times context.
        seconds: of all of its calls.
    """

    operation: str
    part: str
    experts: int
    at: float
    seconds: float


class Tables:
    """Times of operations.

    Args:
        entries: several at one place are averaged.

    Raises:
        ConfigError: there are none.
    """

    def __init__(self, entries: Iterable[Entry]):
        found: dict[tuple[str, str, int], dict[float, list[float]]] = {}
        for name, part, experts, at, seconds in entries:
            found.setdefault((name, part, experts), {}).setdefault(at, []).append(seconds)
        if not found:
            raise ConfigError("no point has times of operations; measure with --operations")
        # (operation, part) -> experts -> (place, seconds), ascending.
        self._curves: dict[tuple[str, str], dict[int, list[tuple[float, float]]]] = {}
        for (name, part, experts), places in sorted(found.items()):
            curve = sorted((at, statistics.fmean(values)) for at, values in places.items())
            self._curves.setdefault((name, part), {})[experts] = curve

    @classmethod
    def of(cls, points: Iterable[Measured]) -> Tables:
        """Tables of those points whose operations were timed."""
        return cls(
            Entry(name, part, _experts(name, point.shape), _place(name, part, point.shape), seconds)
            for point in points
            for (name, part), seconds in point.operations.items()
        )

    def entries(self) -> list[Entry]:
        """What tables can be made of again."""
        return [
            Entry(*key, experts, at, seconds)
            for key, curves in self._curves.items()
            for experts, curve in curves.items()
            for at, seconds in curve
        ]

    def seconds(self, part: str, shape: StepShape) -> float:
        """Of all operations of one part of a step.

        Args:
            part: "main" or "draft".
            shape: of the step.

        Raises:
            ConfigError: nothing was measured with so many experts, nor with fewer and with more.
        """
        names = (name for name, own in self._curves if own == part)
        return sum(self.operation(name, part, shape) for name in names)

    def operation(self, name: str, part: str, shape: StepShape) -> float:
        """Of one operation's calls; see `seconds`."""
        experts, place = _experts(name, shape), _place(name, part, shape)
        known = self._curves[name, part]
        if experts in known:
            return interpolated(known[experts], place)
        if not min(known) < experts < max(known):
            raise ConfigError(f"{experts} experts: {name} was measured with {sorted(known)}")
        return interpolated([(e, interpolated(c, place)) for e, c in known.items()], experts)


def _experts(name: str, shape: StepShape) -> int:
    return shape.experts if name in _BY_EXPERTS else 0


def _place(name: str, part: str, shape: StepShape) -> float:
    """Where a step lies on an operation's axis."""
    tokens = shape.tokens if part == "main" else shape.rows
    return tokens * shape.length if name in _BY_CONTEXT else tokens


def interpolated(curve: Sequence[tuple[float, float]], at: float) -> float:
    """Straight lines on logarithmic axes; constant below the first place, the last line beyond.

    Args:
        curve: (place, positive value), ascending.
        at: a place > 0.
    """
    places = [place for place, _ in curve]
    right = bisect_left(places, at)
    if right == 0 or len(curve) == 1:
        return curve[0][1]
    right = min(right, len(curve) - 1)
    (a, low), (b, high) = curve[right - 1], curve[right]
    part = math.log(at / a) / math.log(b / a)
    return low * (high / low) ** part


@dataclass(frozen=True)
class StepModel:
    """Tables and constants.

    seconds = scale * operations + base + token * tokens + (drafts: draft + scale * theirs)

    Attributes:
        tables: of operations.
        scale: what they take in a step, over alone.
        base: seconds of any step.
        token: seconds of a token.
        draft: seconds of proposing drafts.
    """

    tables: Tables
    scale: float
    base: float
    token: float
    draft: float

    def seconds(self, shape: StepShape) -> float:
        """Of a step."""
        return float(np.dot(_terms(self.tables, shape), self.constants))

    @property
    def constants(self) -> tuple[float, float, float, float]:
        """The fitted ones."""
        return self.scale, self.base, self.token, self.draft


def _terms(tables: Tables, shape: StepShape) -> list[float]:
    """What the constants are multiplied with."""
    drafting = shape.drafts > 0
    seconds = tables.seconds("main", shape) + (tables.seconds("draft", shape) if drafting else 0)
    return [seconds, 1.0, shape.tokens, float(drafting)]


def fit(points: Sequence[Measured]) -> StepModel:
    """Constants that leave the least relative errors (squares); none is negative.

    Args:
        points: those with operations make the tables, all of them the constants.

    Raises:
        ConfigError: there are fewer points than constants.
    """
    tables = Tables.of(points)
    terms = np.array([_terms(tables, point.shape) for point in points])
    times = np.array([point.seconds for point in points])
    if len(points) < terms.shape[1]:
        raise ConfigError(f"{len(points)} points: {terms.shape[1]} constants need as many")
    used = list(range(terms.shape[1]))
    while True:
        found = np.zeros(terms.shape[1])
        weighted = terms[:, used] / times[:, None]
        found[used] = np.linalg.lstsq(weighted, np.ones(len(times)), rcond=None)[0]
        if (found >= 0).all():
            return StepModel(tables, *(float(value) for value in found))
        used = [place for place in used if found[place] >= 0]


class Prediction(NamedTuple):
    """A step that was predicted, and measured: seconds."""

    shape: StepShape
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative, positive if too long."""
        return self.predicted / self.measured - 1


def predictions(model: StepModel, points: Iterable[Measured]) -> list[Prediction]:
    """What the model says of points."""
    return [Prediction(p.shape, model.seconds(p.shape), p.seconds) for p in points]
