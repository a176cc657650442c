"""The loop between planner and runner: ids in, ids out.

At most one step is uncollected: with asynchronous scheduling the next step is planned and enqueued
before the result of the one before is read. Knows nothing of text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from deepinfer.engine.watchdog import Watchdog
from deepinfer.request import Request
from deepinfer.scheduler import Progress, Scheduler, Snapshot
from deepinfer.step import StepPlan, StepResult


class Runner(Protocol):
    """What computes plans; calls only enqueue work, except `collect`."""

    def forward(self, plan: StepPlan) -> None:
        """Take over the plan's changes and compute its tokens."""
        ...

    def sample(self, number: int) -> None:
        """Generate tokens from the forward pass of step `number`."""
        ...

    def draft(self, number: int) -> None:
        """Propose drafts for the step after `number`."""
        ...

    def collect(self, number: int) -> StepResult:
        """Wait for step `number` and return what it produced."""
        ...


class Recorder(Protocol):
    """Told of everything that passes between planner and runner."""

    def plan(self, plan: StepPlan) -> None:
        """A plan, before it is computed."""
        ...

    def result(self, result: StepResult, counters: Snapshot) -> None:
        """A result, after it is booked."""
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
        self._recorder = recorder
        self._uncollected: int | None = None

    @property
    def idle(self) -> bool:
        """Nothing to compute and nothing to collect."""
        return self._uncollected is None and self.scheduler.idle

    def add(self, request: Request) -> None:
        """Queue a request.

        Raises:
            RequestError: its name is in use, or it can never fit.
        """
        self.scheduler.add(request)

    def step(self) -> StepNews:
        """Plan and enqueue a step, then collect the one before (synchronously: the same one)."""
        before = self._uncollected
        plan = self.scheduler.plan(self.clock())
        if plan is not None:
            if self._recorder is not None:
                self._recorder.plan(plan)
            if self.watchdog is not None:
                self.watchdog.begin(plan)
            self.runner.forward(plan)
            self.runner.sample(plan.number)
            self.runner.draft(plan.number)
            self._uncollected = plan.number
        else:
            self._uncollected = None
        if before is None and not self.async_scheduling:
            before, self._uncollected = self._uncollected, None
        if before is None:
            return StepNews(self.scheduler.take_reports(), None)
        result = self.runner.collect(before)
        if self.watchdog is not None:
            self.watchdog.end(before)
        progress = self.scheduler.apply(result, self.clock())
        if self._recorder is not None:
            self._recorder.result(result, self.scheduler.snapshot())
        return StepNews(progress, result)

    def close(self) -> None:
        """End the watchdog's thread; no step may follow."""
        if self.watchdog is not None:
            self.watchdog.close()
