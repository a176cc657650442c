"""Devices that compute plans without a model, and the runner that gives their steps a duration.

Knows nothing of requests and their arrival.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Protocol

import numpy as np

from deepinfer.bench.simulate.cost import Cost, StepWork
from deepinfer.bench.simulate.drafts import DraftLaw
from deepinfer.bench.simulate.trace import VOCABULARY, stream_ids
from deepinfer.scheduler import Limits, ShadowDevice
from deepinfer.scheduler.calibration import probability
from deepinfer.scheduler.shadow import DrafterSpec
from deepinfer.scheduler.speculation import share_budget_out
from deepinfer.step import FLAG_LIMIT, StepMasks, StepPlan, StepResult


class Rows:
    """Lengths of rows, as plans and results change them.

    Attributes:
        length, limit: [rows + 1] int64, tokens known and most tokens.
        stream: [rows + 1] uint64, the seed of the request.
        decoding: [n] rows that decode, ascending.
    """

    def __init__(self, slots: int):
        self.length, self.limit = np.zeros((2, slots + 1), np.int64)
        self.stream = np.zeros(slots + 1, np.uint64)
        self.decoding = np.zeros(0, np.int64)

    def update(self, plan: StepPlan) -> None:
        """Take over the changes of a plan."""
        for admit in plan.admit:
            self.length[admit.row], self.limit[admit.row] = len(admit.ids), admit.limit
            self.stream[admit.row] = admit.seed
        if plan.decode_add or plan.decode_remove:
            kept = np.setdiff1d(self.decoding, np.array(plan.decode_remove, np.int64))
            self.decoding = np.union1d(kept, np.array(plan.decode_add, np.int64))

    def work(self, plan: StepPlan) -> StepWork:
        """Work of the plan just taken over; drafts are not known before its result."""
        pairs = sum(p.length * p.start + p.length * (p.length + 1) // 2 for p in plan.prefill)
        return StepWork(
            prefill_tokens=sum(piece.length for piece in plan.prefill),
            prefill_pairs=pairs,
            rows=len(self.decoding),
            context_tokens=int(self.length[self.decoding].sum()),
            drafts=0,
        )

    def grow(self, result: StepResult) -> None:
        """Take over the tokens of a result."""
        self.length[result.row] += result.generated


class Device(Protocol):
    """Computes a plan at once."""

    def compute(self, plan: StepPlan, rows: Rows) -> StepResult:
        """The result of a plan that `rows` has taken over; `rows` does not change."""
        ...


class CountingDevice:
    """Tokens are a function of a row's seed and the position; nothing is stored.

    Args:
        max_draft: drafts a row has in every step.
        law: of them.
    """

    def __init__(self, max_draft: int, law: DraftLaw):
        self._drafts = max_draft
        self._law = law
        self._temperature = np.ones(max_draft)

    def compute(self, plan: StepPlan, rows: Rows) -> StepResult:
        """See `Device`."""
        if plan.draft_temperature:
            self._temperature = np.array(plan.draft_temperature)
        emits = np.array([piece.row for piece in plan.prefill if piece.emits], np.int64)
        row = np.concatenate([emits, rows.decoding])
        length, limit = rows.length[row], rows.limit[row]
        left = limit - length
        verified = np.zeros(len(row), np.int64)
        place = np.arange(1 + self._drafts)
        positions = (length[:, None] + place).astype(np.uint64)
        streams = rows.stream[row][:, None]
        accepted = verified
        if plan.draft_budget:
            right, logits = self._law.draw(streams, positions[:, :-1])
            want = np.minimum(self._drafts, np.maximum(left - 1, 0))
            want[: len(emits)] = 0
            worth = probability(logits, self._temperature).cumprod(axis=1)
            verified = share_budget_out(worth, want, plan.draft_budget)
            right &= place[: self._drafts] < verified[:, None]
            accepted = np.cumprod(right, axis=1).sum(axis=1)
        generated = np.minimum(accepted + 1, left)
        tokens = np.where(place < generated[:, None], stream_ids(streams, positions), -1)
        ended = (left > 0) & (length + generated >= limit)
        confidence = np.zeros((len(row), 0), np.float32)
        if self._drafts:
            following = (positions[:, :-1] + generated[:, None]).astype(np.uint64)
            confidence = self._law.draw(streams, following)[1]
        return StepResult(
            number=plan.number,
            row=row.astype(np.int32),
            verified=verified.astype(np.int32),
            accepted=np.minimum(accepted, generated).astype(np.int32),
            tokens=tokens.astype(np.int32),
            flags=np.where(ended, FLAG_LIMIT, 0).astype(np.int32),
            confidence=confidence,
        )


class CheckingDevice:
    """The shadow device: every plan that breaks a promise raises AssertionError.

    Args:
        limits: of the scheduler.
        acceptance: probability that a draft is right, 0..1.
    """

    def __init__(self, limits: Limits, acceptance: float):
        drafter = DrafterSpec(right_percent=round(100 * acceptance), confident=True)
        self._shadow = ShadowDevice(limits, drafter=drafter, vocabulary=VOCABULARY)

    def compute(self, plan: StepPlan, rows: Rows) -> StepResult:
        """See `Device`."""
        self._shadow.forward(plan)
        self._shadow.sample(plan.number)
        self._shadow.draft(plan.number)
        return self._shadow.collect(plan.number)


class Clock:
    """Simulated seconds; `now` is set by those who wait."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """The time, as a clock of the loop."""
        return self.now


class TimedRunner:
    """A device behind the calls of a runner. One step is computed at a time; planning takes time.

    Args:
        device: computes.
        limits: of the scheduler.
        cost: durations.
        clock: moved on by planning, and to the end of a step by waiting for it.
    """

    def __init__(self, device: Device, limits: Limits, cost: Cost, clock: Clock):
        self._device = device
        self._rows = Rows(limits.num_slots)
        self._cost = cost
        self._clock = clock
        self._free_at = 0.0
        self._results: deque[tuple[StepResult, float]] = deque()
        self.busy = 0.0  # seconds of all steps

    def forward(self, plan: StepPlan) -> None:
        """Compute a step; its result is there when its time has passed."""
        self._clock.now += self._cost.host
        self._rows.update(plan)
        work = self._rows.work(plan)
        result = self._device.compute(plan, self._rows)
        self._rows.grow(result)
        seconds = self._cost.seconds(work._replace(drafts=int(result.verified.sum())))
        result = replace(result, seconds=seconds)
        self._free_at = max(self._clock.now, self._free_at) + seconds
        self.busy += seconds
        self._results.append((result, self._free_at))

    def sample(self, number: int, masks: StepMasks | None = None) -> None:
        """Done by `forward`; nothing is constrained here."""
        assert masks is None

    def draft(self, number: int) -> None:
        """Done by `forward`."""

    def collect(self, number: int) -> StepResult:
        """Wait for a step."""
        result, end = self._results.popleft()
        assert result.number == number, f"step {result.number} comes before {number}"
        self._clock.now = max(self._clock.now, end)
        return result
