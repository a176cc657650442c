"""How many drafts a step verifies: as many as pay, by measured time and calibrated confidences.

The budget of a step is chosen here, from confidences of the last result that is known, two steps
old with overlap; the device shares it out by the newest ones (`dspark-and-replay.md` 5). So whether
a draft is verified never depends on drafts behind it. Knows nothing of pages and requests.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deepinfer.scheduler.calibration import Calibration, Floats, probability, temperatures
from deepinfer.scheduler.costs import TRUSTED, CostCurve
from deepinfer.scheduler.limits import Limits
from deepinfer.step import StepResult

_FIT = 64  # results until temperatures are fitted again
_SAMPLED = 512  # rows in between after which no more results are looked at for it
_TRY = 4  # every so many plans a budget is tried whose time is not known yet
_MANY = 32  # rows from which on a budget is kept for `_TRY` plans: so many hardly change their sum
_TRY_AGAIN = 128  # every so many plans some budget is timed again


class Size(NamedTuple):
    """What a step computes: decoding rows, prefill tokens, drafts, rows of its graph (0 = none)."""

    rows: int
    prefill: int
    drafts: int
    graph_rows: int

    @property
    def tokens(self) -> int:
        """With padding: a graph computes a multiple of its rows."""
        if not self.graph_rows or self.prefill:
            return self.rows + self.prefill + self.drafts
        return self.graph_rows * (1 + -(-self.drafts // self.graph_rows))


class _Choice(NamedTuple):
    """A budget that was chosen by worth, and for how many rows."""

    rows: int
    budget: int


class DraftCounts(NamedTuple):
    """What became of drafts since the start; see `report.Snapshot`."""

    drafts_scheduled: int
    drafts_verified: int
    drafts_accepted: int
    drafts_verified_at: tuple[int, ...]
    drafts_accepted_at: tuple[int, ...]
    mean_accepted_length: float
    calibration_error: float


class _Trials(NamedTuple):
    """Of one result: confidences of the drafts that it checked, and what came of them."""

    logits: NDArray[np.float32]
    verified: NDArray[np.int32]
    accepted: NDArray[np.int32]
    flags: NDArray[np.int32]


class Speculation:
    """Budgets of drafts, and what is learned from results to choose them.

    Args:
        limits: of the device; `max_draft`, `drafting` and `graph_sizes` count.

    Attributes:
        plain, mixed: time of steps that only decode, and of those that also prefill.
        calibration: of the confidences.
    """

    def __init__(self, limits: Limits):
        self._depths, self._adaptive = limits.max_draft, limits.drafting.adaptive
        self._limits = limits
        self.plain, self.mixed = CostCurve(), CostCurve()
        start = temperatures(limits.max_draft, limits.drafting.temperature)
        self.calibration = Calibration(limits.max_draft, start)
        self._told = (1.0,) * limits.max_draft  # temperatures of the device
        self._depth = np.arange(limits.max_draft)
        shape = (limits.num_slots + 1, limits.max_draft)
        self._logits = np.zeros(shape, np.float32)
        self._last: dict[bool, _Choice] = {}  # with prefill and without
        self._row_verified, self._row_accepted = np.zeros((2, limits.num_slots + 1), np.int64)
        self._kept: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []  # not counted yet
        self._trials: list[_Trials] = []  # not in the calibration yet
        self._sampled = 0  # rows in them
        self._results = self._plans = self._scheduled = 0
        self._verified, self._accepted = np.zeros((2, limits.max_draft), np.int64)

    def budget(
        self, rows: NDArray[np.int64], room: NDArray[np.int64], most: int, prefill: int
    ) -> int:
        """Drafts that the next step verifies, 0..most.

        Args:
            rows: [n] rows that decode, n >= 1.
            room: [n] drafts that each may verify at most, by its limit.
            most: what tokens and pages allow.
            prefill: prompt tokens that the step will compute too, about.

        Returns:
            most, unless the choice is adaptive and steps were timed; else the number that promises
            most tokens a second. One sort of at most rows x max_draft values, for many rows in
            every fourth plan; between them they keep the drafts a row.
        """
        curve = self.mixed if prefill else self.plain
        if not (self._adaptive and most and curve.known):
            return most
        size = Size(len(rows), prefill, 0, 0 if prefill else self._limits.graph_rows(len(rows)))
        self._plans += 1
        tried = None if prefill else self._try(size, most)
        if tried is not None:
            return tried
        last = self._last.get(prefill > 0)
        if last is not None and size.rows >= _MANY and self._plans % _TRY:
            possible = int(np.minimum(room, self._depths).sum())
            return min(last.budget * size.rows // last.rows, most, possible)
        worth = self.survival(self._logits[rows])
        if room.min() < self._depths:
            worth[self._depth >= room[:, None]] = 0
        budget = best_budget(worth, size, most, curve)
        self._last[prefill > 0] = _Choice(size.rows, budget)
        return budget

    def _try(self, size: Size, most: int) -> int | None:
        """Now and then a budget whose time is not known, or not any more."""
        if self._plans % _TRY:
            return None
        budgets = [min(level * size.rows, most) for level in range(self._depths + 1)]
        if self._plans % _TRY_AGAIN == 0:
            return budgets[self._plans // _TRY_AGAIN % len(budgets)]
        seen = [self.plain.near(size._replace(drafts=drafts).tokens) for drafts in budgets]
        least = min(seen)
        return budgets[seen.index(least)] if least < TRUSTED else None

    def planned(self, drafts: int) -> tuple[float, ...]:
        """Book a step's budget; returns the temperatures if the device does not have them yet."""
        self._scheduled += drafts
        wanted = tuple(self.calibration.temperature.tolist())
        if wanted == self._told:
            return ()
        self._told = wanted
        return wanted

    def applied(self, result: StepResult, live: NDArray[np.bool_], size: Size) -> None:
        """Learn from a result.

        Args:
            result: of a step.
            live: [n] whether the request of each of its rows still runs.
            size: of the step.
        """
        if not self._depths:
            return
        (self.mixed if size.prefill else self.plain).add(size.tokens, result.seconds)
        row, accepted = result.row.astype(np.int64), result.accepted
        verified = result.verified * live  # what an ended request had on its way does not count
        self._row_verified[row] += verified
        self._row_accepted[row] += np.minimum(accepted, verified)
        self._kept.append((verified, accepted))
        if self._sampled < _SAMPLED:
            self._sampled += len(row)
            self._trials.append(_Trials(self._logits[row], verified, accepted, result.flags))
        self._results += 1
        if self._results % _FIT == 0:
            self._count()
            self._fit()
        if result.confidence.shape[1]:  # else nothing proposes drafts
            self._logits[row] = result.confidence

    def take(self, row: int) -> tuple[int, int]:
        """Drafts verified and accepted of the request that leaves a row."""
        counts = int(self._row_verified[row]), int(self._row_accepted[row])
        self._row_verified[row] = self._row_accepted[row] = 0
        return counts

    def survival(self, logits: NDArray[np.float32]) -> Floats:
        """[n, depths] probability that each draft is accepted, all before it included.

        Args:
            logits: [n, depths] raw confidences; for those that are 0 or not finite the part of
                such drafts that was right so far.
        """
        right = probability(logits, self.calibration.temperature)
        told = (logits != 0) & np.isfinite(logits)
        if not told.all():
            right = np.where(told, right, self.calibration.rate())
        return right.cumprod(axis=1)

    def _fit(self) -> None:
        """Fit temperatures to the results that were sampled."""
        logits, verified, accepted, flags = map(np.concatenate, zip(*self._trials, strict=True))
        # What ended a row may have cut a right draft off: only its accepted ones say something.
        accepted = np.minimum(accepted, verified)
        self.calibration.add(logits, np.where(flags != 0, accepted, verified), accepted)
        self.calibration.fit()
        self._trials, self._sampled = [], 0

    def _count(self) -> None:
        """Count what was kept, by place in the block."""
        if self._kept:
            verified, accepted = map(np.concatenate, zip(*self._kept, strict=True))
            self._verified += _at_least(verified, self._depths)
            self._accepted += _at_least(np.minimum(accepted, verified), self._depths)
            self._kept = []

    def counts(self) -> DraftCounts:
        """What became of drafts so far."""
        self._count()
        verified, accepted = int(self._verified.sum()), int(self._accepted.sum())
        rounds = int(self._verified[0]) if verified else 0
        return DraftCounts(
            drafts_scheduled=self._scheduled,
            drafts_verified=verified,
            drafts_accepted=accepted,
            drafts_verified_at=tuple(self._verified.tolist()),
            drafts_accepted_at=tuple(self._accepted.tolist()),
            mean_accepted_length=round(1 + accepted / rounds, 4) if rounds else 0.0,
            calibration_error=round(self.calibration.error(), 4),
        )


def _at_least(values: NDArray[np.int32], most: int) -> NDArray[np.int64]:
    """[most] how many values are at least 1, 2, ..., most."""
    return np.bincount(values, minlength=most + 1)[:0:-1].cumsum()[::-1]


def best_budget(worth: Floats, size: Size, most: int, curve: CostCurve) -> int:
    """The budget with the most expected tokens a second, the smallest of equal ones.

    Args:
        worth: [rows, depths] probability that a draft is accepted, falling along a row; 0 for
            drafts that cannot be verified. The best of them are those that the device will choose.
        size: of the step without drafts.
        most: largest budget.
        curve: time of steps.
    """
    best = np.sort(worth, axis=None)[::-1][:most]
    best = best[: int(np.count_nonzero(best))]
    tokens = np.empty(len(best) + 1)
    tokens[0], tokens[1:] = size.rows, size.rows + best.cumsum()
    if size.graph_rows and not size.prefill:
        # Between multiples of the graph's rows a draft costs nothing.
        budgets = np.minimum(np.arange(0, len(best) + size.graph_rows, size.graph_rows), len(best))
        spent = curve.seconds(size.graph_rows * (1 + np.arange(len(budgets))))
        return int(budgets[np.argmax(tokens[budgets] / spent)])
    return int(np.argmax(tokens / curve.seconds(size.tokens + np.arange(len(tokens)))))


def share_budget_out(worth: Floats, wanted: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """Drafts that each row verifies, by the rule of the device: the largest worth first.

    Args:
        worth: [rows, depths] as in `best_budget`; ties go to the lower row.
        wanted: [rows] drafts that a row can verify.
        budget: drafts in all.
    """
    depth = np.arange(worth.shape[1], dtype=np.int64)
    possible = depth < wanted[:, None]
    order = np.argsort(np.where(possible, -worth, np.inf), axis=None, kind="stable")[:budget]
    chosen = np.zeros(worth.size, np.bool_)
    chosen[order] = True
    return np.count_nonzero(chosen.reshape(worth.shape) & possible, axis=1)
