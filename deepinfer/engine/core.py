"""The loop between planner and runner: ids in, ids out.

At most one step is uncollected: with asynchronous scheduling the next step is planned and enqueued
before the result of the one before is read. If rows of a step need grammar masks, that result is
read between its forward pass and its sampling, while the device computes. Knows nothing of text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from deepinfer.engine.masks import Asked, Masks, Matcher
from deepinfer.engine.watchdog import Watchdog
from deepinfer.request import Request
from deepinfer.scheduler import Progress, Scheduler, Snapshot
from deepinfer.step import StepMasks, StepPlan, StepResult


class Runner(Protocol):
    """What computes plans; calls only enqueue work, except `collect`."""

    def forward(self, plan: StepPlan) -> None:
        """Take over the plan's changes and compute its tokens."""
        ...

    def sample(self, number: int, masks: StepMasks | None = None) -> None:
        """Generate tokens from the forward pass of step `number`.

        `masks` are those of the rows that the plan says are masked; None if there are none.
        """
        ...

    def draft(self, number: int) -> None:
        """Propose drafts for the step after `number`."""
        ...

    def collect(self, number: int) -> StepResult:
        """Wait for step `number` and return what it produced."""
        ...


class Recorder(Protocol):
    """Told of every request and of everything that passes between planner and runner."""

    def request(self, request: Request) -> None:
        """A request that was queued."""
        ...

    def plan(self, plan: StepPlan) -> None:
        """A plan, before it is computed."""
        ...

    def masks(self, number: int, masks: StepMasks) -> None:
        """Grammar masks of step `number`, behind its plan."""
        ...

    def result(self, result: StepResult, counters: Snapshot, progress: Sequence[Progress]) -> None:
        """A result, after it is booked, and what it meant to requests."""
        ...


class StepNews(NamedTuple):
    """What one call of `EngineCore.step` learned; `result` is None if no step was collected."""

    progress: list[Progress]
    result: StepResult | None


class EngineCore:
    """Scheduler and runner in step.

    Args:
        scheduler: plans.
        runner: computes.
        clock: seconds, monotonic.
        async_scheduling: plan one step ahead of the results.
        recorder: told of every plan and result.
        watchdog: told when a step begins and ends; may be set later, before the first step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        clock: Callable[[], float],
        *,
        async_scheduling: bool = False,
        recorder: Recorder | None = None,
        watchdog: Watchdog | None = None,
    ):
        self.scheduler = scheduler
        self.runner = runner
        self.clock = clock
        self.async_scheduling = async_scheduling
        self.watchdog = watchdog
        self.masks = Masks(scheduler.limits.max_draft)  # of constrained requests
        self._recorder = recorder
        self._uncollected: int | None = None
        limits = scheduler.limits
        self._drafts = np.full((limits.num_slots + 1, limits.max_draft), -1, np.int32)

    @property
    def idle(self) -> bool:
        """Nothing to compute and nothing to collect."""
        return self._uncollected is None and self.scheduler.idle

    def add(self, request: Request, matcher: Matcher | None = None, words: int = 0) -> None:
        """Queue a request.

        Args:
            request: what to compute.
            matcher: of a constrained request: which tokens may come, at the beginning.
            words: 32-bit words of its masks.

        Raises:
            RequestError: its name is in use, or it can never fit.
        """
        assert request.constrained == (matcher is not None), "a constraint comes with its matcher"
        self.scheduler.add(request)
        if self._recorder is not None:
            self._recorder.request(request)
        if matcher is not None:
            self.masks.add(request.request_id, matcher, words)

    def step(self) -> StepNews:
        """Plan and enqueue a step, then collect the one before (synchronously: the same one)."""
        before = self._uncollected
        plan = self.scheduler.plan(self.clock())
        self._uncollected = None if plan is None else plan.number
        news: StepNews | None = None
        if plan is not None:
            if self._recorder is not None:
                self._recorder.plan(plan)
            if self.watchdog is not None:
                self.watchdog.begin(plan)
            self.runner.forward(plan)
            if plan.masked:
                if before is not None:  # tokens and drafts that the masks depend on
                    news = self._collect(before)
                masks = self._masks(plan)
                if self._recorder is not None:
                    self._recorder.masks(plan.number, masks)
                self.runner.sample(plan.number, masks)
            else:
                self.runner.sample(plan.number)
            self.runner.draft(plan.number)
        if news is not None:
            return news
        if before is None and not self.async_scheduling:
            before, self._uncollected = self._uncollected, None
        return (
            StepNews(self.scheduler.take_reports(), None)
            if before is None
            else self._collect(before)
        )

    def _collect(self, number: int) -> StepNews:
        """Wait for a step and book what came of it."""
        result = self.runner.collect(number)
        if result.drafts.size:  # those of rows that the next step leaves out stay as they are
            width = min(result.drafts.shape[1], self._drafts.shape[1])
            self._drafts[result.row, :width] = result.drafts[:, :width]
        if self.watchdog is not None:
            self.watchdog.end(number)
        progress = self.scheduler.apply(result, self.clock())
        if self._recorder is not None:
            self._recorder.result(result, self.scheduler.snapshot(), progress)
        for item in progress:
            if item.finish_reason is not None:
                self.masks.forget(item.request_id)
            elif error := self.masks.accept(item.request_id, item.token_ids):
                self._fail(item.request_id, error)
        return StepNews(progress, result)

    def _masks(self, plan: StepPlan) -> StepMasks:
        """Masks of a step; everything before it is known."""
        emitting = {piece.row for piece in plan.prefill if piece.emits}
        asked: dict[int, Asked] = {}
        for row in plan.masked:
            name, drafts = self.scheduler.request_at(row), list[int]()
            assert name is not None, f"row {row} has no request"
            if plan.draft_budget and row not in emitting:
                drafts = self._drafts[row].tolist()
            asked[row] = Asked(name, tuple(id for id in drafts if id >= 0))
        masks, failed = self.masks.step(asked)
        for name, error in failed.items():
            self._fail(name, error)
        return masks

    def _fail(self, name: str, error: str) -> None:
        self.masks.forget(name)
        self.scheduler.finish(name, "error", error)

    def close(self) -> None:
        """End the threads; no step may follow."""
        self.masks.close()
        if self.watchdog is not None:
            self.watchdog.close()
