"""How many drafts a step verifies: as many as pay, by measured time and calibrated confidences.

The budget of a step is chosen here, from confidences of the last result that is known, two steps
old with overlap; the device shares it out by the newest ones (`dspark-and-replay.md` 5). So whether
a draft is verified never depends on drafts behind it. Knows nothing of pages and requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from deepinfer.scheduler.calibration import Calibration, Floats, probability, temperatures
from deepinfer.scheduler.costs import CostCurve, last_of_places
from deepinfer.scheduler.limits import Limits
from deepinfer.step import StepResult

_FIT, _SELDOM = 64, 512  # least and most results until temperatures are fitted again,
_LATER = 4  # in between a part of the results so far
_SAMPLED = 8  # of so many rows one is looked at for it, about
_TRY = 4  # every so many plans a budget may be tried whose time is not known yet,
_HOPE = 1.02  # if it would be so much better than the best known one
_MANY, _KEEP = 32, 8  # that many rows and more keep the tokens of a step for a plan or more, at
# most 8: the more they are, the less their sum changes from step to step,
_NEAR = 8  # unless more than one in so many came or went
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
    """A budget that was chosen by worth, for how many rows, and whether all could verify more than
    a few plans will ask of them."""

    rows: int
    budget: int
    roomy: bool


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
        self._seen: Floats | None = None  # those looked at last
        self._depth = np.arange(limits.max_draft)
        shape = (limits.num_slots + 1, limits.max_draft)
        self._logits = np.zeros(shape, np.float32)
        self._told_by: StepResult | None = None  # the newest result
        self._last: dict[bool, _Choice] = {}  # with prefill and without
        # How often a row verified so many drafts and accepted so many; row 0 has those that left.
        kinds = 1 + limits.max_draft
        self._outcomes = np.zeros((limits.num_slots + 1, kinds, kinds), np.int64)
        self._flat = self._outcomes.reshape(-1)
        self._trials: list[_Trials] = []  # not in the calibration yet
        self._results = self._plans = self._scheduled = 0
        self._next_trial, self._next_fit = 0, _FIT  # numbers of results

    def budget(
        self,
        rows: NDArray[np.int64],
        room: Callable[[], NDArray[np.int64]],
        most: int,
        prefill: int,
    ) -> int:
        """Drafts that the next step verifies, 0..most.

        Args:
            rows: [n] rows that decode, n >= 1.
            room: gives [n] drafts that each may verify at most, by its limit.
            most: what tokens and pages allow.
            prefill: prompt tokens that the step will compute too, about.

        Returns:
            most, unless the choice is adaptive and steps were timed; else the number that promises
            most tokens a second. One sort of at most rows x max_draft values, for many rows only
            in every fourth or eighth plan; between them a step keeps its tokens.
        """
        curve = self.mixed if prefill else self.plain
        if not (self._adaptive and most and curve.known):
            return most
        size = Size(len(rows), prefill, 0, 0 if prefill else self._limits.graph_rows(len(rows)))
        self._plans += 1
        kept = self._kept_choice(size, room, most)
        if kept is not None:
            return kept
        worth, left = self.survival(self._newest(rows)), room()
        least = int(left.min())
        if least < self._depths:
            worth[self._depth >= left[:, None]] = 0
        options = every_option(worth, size, most)
        rates = options.expected / curve.seconds(options.tokens)
        best = int(np.argmax(rates))
        roomy = least >= _KEEP * (1 + self._depths)
        self._last[prefill > 0] = _Choice(size.rows, int(options.budgets[best]), roomy)
        if not prefill and self._plans % max(_TRY, _period(size.rows)) == 0:
            best = self._tried(options, best, float(rates[best]))
        return int(options.budgets[best])

    def _kept_choice(
        self, size: Size, room: Callable[[], NDArray[np.int64]], most: int
    ) -> int | None:
        """Many rows: the tokens of the plan before, for a few plans."""
        last = self._last.get(size.prefill > 0)
        if last is None or self._plans % _period(size.rows) == 0:
            return None
        more = size.rows - last.rows
        if abs(more) * _NEAR > last.rows:
            return None
        if not last.roomy:
            most = min(most, int(np.minimum(room(), self._depths).sum()))
        return max(min(last.budget - more, most), 0)

    def _tried(self, options: Options, best: int, rate: float) -> int:
        """Now and then an option whose time is not known, or not any more, instead of the best."""
        if self._plans % _TRY_AGAIN == 0:
            level = self._plans // _TRY_AGAIN % (self._depths + 1)
            return level * (len(options.budgets) - 1) // self._depths
        hopes = options.expected / self.plain.at_best(options.tokens)
        place = int(np.argmax(hopes))
        if hopes[place] <= _HOPE * rate:
            return best
        tried = self.plain.unmeasured(options.tokens, place)
        return best if tried is None else tried

    def planned(self, drafts: int) -> tuple[float, ...]:
        """Book a step's budget; returns the temperatures if the device does not have them yet."""
        self._scheduled += drafts
        if self.calibration.temperature is self._seen:  # a fit makes another array
            return ()
        self._seen = self.calibration.temperature
        wanted = tuple(self._seen.tolist())
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
        if self._adaptive:
            (self.mixed if size.prefill else self.plain).add(size.tokens, result.seconds)
        row = result.row
        verified = result.verified * live  # what an ended request had on its way does not count
        accepted = np.minimum(result.accepted, verified)
        kinds = 1 + self._depths
        self._flat[(row * kinds + verified) * kinds + accepted] += 1
        if self._results >= self._next_trial:
            self._next_trial = self._results + 1 + len(row) // _SAMPLED
            self._trials.append(_Trials(self._newest(row), verified, accepted, result.flags))
        self._results += 1
        if self._results == self._next_fit:
            self._next_fit += min(max(_FIT, self._results // _LATER), _SELDOM)
            self._fit()
        if result.confidence.shape[1]:  # else nothing proposes drafts
            self._told_by = result

    def _newest(self, rows: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.float32]:
        """[n, depths] confidences of the newest result; 0 for rows that it does not have."""
        self._logits.fill(0)
        if self._told_by is not None:
            self._logits[self._told_by.row] = self._told_by.confidence
        return self._logits[rows]

    def take(self, row: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Drafts verified and accepted of the request that leaves a row, by place in the block.

        Row 0 is nobody's: a request that waits has none.
        """
        if not row:
            return (0,) * self._depths, (0,) * self._depths
        counts = self._outcomes[row]
        found = _at_least(counts.sum(axis=1)), _at_least(counts.sum(axis=0))
        self._outcomes[0] += counts
        counts[:] = 0
        return found

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
        self.calibration.add(logits, np.where(flags != 0, accepted, verified), accepted)
        self.calibration.fit()
        self._trials = []

    def counts(self) -> DraftCounts:
        """What became of drafts so far."""
        verified_at = _at_least(self._outcomes.sum(axis=(0, 2)))
        accepted_at = _at_least(self._outcomes.sum(axis=(0, 1)))
        verified, accepted = sum(verified_at), sum(accepted_at)
        return DraftCounts(
            drafts_scheduled=self._scheduled,
            drafts_verified=verified,
            drafts_accepted=accepted,
            drafts_verified_at=verified_at,
            drafts_accepted_at=accepted_at,
            mean_accepted_length=round(1 + accepted / verified_at[0], 4) if verified else 0.0,
            calibration_error=round(self.calibration.error(), 4),
        )


def _at_least(counts: NDArray[np.int64]) -> tuple[int, ...]:
    """From how often 0, 1, ... things happened, how often at least 1, 2, ... did."""
    return tuple(counts[:0:-1].cumsum()[::-1].tolist())


def _period(rows: int) -> int:
    """Plans until so many rows get another budget."""
    return 1 if rows < _MANY else min(rows // _KEEP, _KEEP)


class Options(NamedTuple):
    """Budgets of a step, ascending; tokens that each is expected to give, and computes."""

    budgets: NDArray[np.int64]
    expected: Floats
    tokens: NDArray[np.int64]


def every_option(worth: Floats, size: Size, most: int) -> Options:
    """All budgets that can be the best.

    Args:
        worth: [rows, depths] probability that a draft is accepted, falling along a row; 0 for
            drafts that cannot be verified. The best of them are those that the device will choose.
        size: of the step without drafts.
        most: largest budget.
    """
    best = np.sort(worth, axis=None)[::-1][:most]
    best = best[: int(np.count_nonzero(best))]
    expected = np.empty(len(best) + 1)
    expected[0], expected[1:] = 0, best.cumsum()
    expected += size.rows
    if not size.graph_rows or size.prefill:
        # Between sizes that are told apart a draft costs nothing as far as is known.
        tokens = last_of_places(size.tokens, size.tokens + len(best))
        return Options(tokens - size.tokens, expected[tokens - size.tokens], tokens)
    # Between multiples of the graph's rows a draft costs nothing.
    levels = np.arange(-(-len(best) // size.graph_rows) + 1)
    budgets = np.minimum(levels * size.graph_rows, len(best))
    return Options(budgets, expected[budgets], size.graph_rows * (1 + levels))


def share_budget_out(worth: Floats, wanted: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """Drafts that each row verifies, by the rule of the device: the largest worth first.

    Args:
        worth: [rows, depths] as in `every_option`; ties go to the lower row.
        wanted: [rows] drafts that a row can verify.
        budget: drafts in all.
    """
    depth = np.arange(worth.shape[1], dtype=np.int64)
    possible = depth < wanted[:, None]
    order = np.argsort(np.where(possible, -worth, np.inf), axis=None, kind="stable")[:budget]
    chosen = np.zeros(worth.size, np.bool_)
    chosen[order] = True
    return np.count_nonzero(chosen.reshape(worth.shape) & possible, axis=1)
