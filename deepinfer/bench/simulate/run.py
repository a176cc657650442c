"""Runs a trace through the engine's own loop and planner, on a simulated clock.

Knows nothing of files and of what is done with the numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from deepinfer.bench.simulate.cost import Cost, StepCost
from deepinfer.bench.simulate.device import CheckingDevice, Clock, CountingDevice, TimedRunner
from deepinfer.bench.simulate.drafts import DraftLaw
from deepinfer.bench.simulate.oracle import Oracle
from deepinfer.bench.simulate.trace import Conversations, TraceLine, stream_number
from deepinfer.engine.core import EngineCore
from deepinfer.errors import RequestError
from deepinfer.request import Request, SamplingParams
from deepinfer.scheduler import Limits, Policy, Progress, Scheduler, Snapshot
from deepinfer.step import StepMasks, StepPlan, StepResult


@dataclass(frozen=True)
class Setup:
    """What serves a trace.

    Attributes:
        limits: sizes and caching.
        policy: how steps are shared.
        cost: durations of steps.
        overlap: plan a step before the result of the one before.
        acceptance: probability that a draft is right if those before it in its block are.
        check: compute on the shadow device, which knows when a plan is wrong; many times slower.
    """

    limits: Limits
    policy: Policy
    cost: Cost = StepCost()
    overlap: bool = True
    acceptance: float = 0.75
    check: bool = False


@dataclass
class Served:
    """What became of one line; times in seconds, tokens of its prompt.

    Attributes:
        number: of the line, in order of arrival.
        arrival: when it came.
        prompt_tokens, output_tokens: as served.
        oracle: tokens that an infinite cache would have had.
        found: tokens of shared pages at the first admission.
        saved: tokens that were not computed then; `found` less the replay.
        first_token, finished: when.
        preemptions: how often it lost its row.
        error: why it was refused or failed, None if it was served.
    """

    number: int
    arrival: float
    prompt_tokens: int
    output_tokens: int = 0
    oracle: int = 0
    found: int = 0
    saved: int = 0
    first_token: float | None = None
    finished: float | None = None
    preemptions: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None if there is none."""
        if self.first_token is None or self.finished is None or self.output_tokens < 2:
            return None
        return (self.finished - self.first_token) / (self.output_tokens - 1)


class Point(NamedTuple):
    """Counters after a step, at a time."""

    seconds: float
    counters: Snapshot


@dataclass
class Outcome:
    """A run: every line once, in order; counters after every step; and the end.

    Attributes:
        served: one entry a line.
        points: one a step.
        seconds: simulated, from 0 to the end of the last step.
        busy: seconds of all steps.
        plans: digest of all plans; equal runs have equal ones.
    """

    served: list[Served]
    points: list[Point] = field(default_factory=list[Point])
    seconds: float = 0.0
    busy: float = 0.0
    plans: str = ""


def facts(plan: StepPlan) -> tuple[object, ...]:
    """All that a plan says except token values."""
    entered = [(a.row, len(a.ids), a.cached, a.encoder_start, a.snapshot) for a in plan.admit]
    parts = (plan.number, entered, plan.release, plan.pages, plan.prefill, plan.snapshots)
    return (*parts, plan.decode_add, plan.decode_remove, plan.draft_budget, plan.max_len_hi)


class _Observer:
    """Hears every plan and result of the loop."""

    def __init__(self, clock: Clock, scheduler: Scheduler, served: dict[str, Served]):
        self._clock = clock
        self._scheduler = scheduler
        self._served = served
        self._admitted: set[str] = set()
        self._digest = hashlib.sha256()
        self.points: list[Point] = []

    def request(self, request: Request) -> None:
        """Lines are known already."""

    def plan(self, plan: StepPlan) -> None:
        """Note first admissions."""
        self._digest.update(repr(facts(plan)).encode())
        for admit in plan.admit:
            name = self._scheduler.request_at(admit.row)
            assert name is not None, f"row {admit.row} was admitted for nobody"
            if name not in self._admitted:
                self._admitted.add(name)
                entry = self._served[name]
                entry.found, entry.saved = admit.cached, admit.encoder_start

    def masks(self, number: int, masks: StepMasks) -> None:
        """The simulator has no grammars."""

    def result(self, result: StepResult, counters: Snapshot, progress: Sequence[Progress]) -> None:
        """Note counters."""
        self.points.append(Point(self._clock.now, counters))

    @property
    def plans(self) -> str:
        """Digest of all plans so far."""
        return self._digest.hexdigest()[:16]


class _Arrivals:
    """Lines that have not come yet; a turn of a session comes after the answer before it."""

    def __init__(self, lines: Iterable[TraceLine]):
        self._ready: list[tuple[float, int, TraceLine]] = []
        self._turns: dict[str, list[tuple[int, TraceLine]]] = {}
        for number, line in enumerate(lines):
            if line.session is None:
                self._ready.append((line.arrival, number, line))
            else:
                self._turns.setdefault(line.session, []).append((number, line))
        for turns in self._turns.values():
            turns.reverse()
            number, line = turns.pop()
            self._ready.append((line.arrival, number, line))
        heapify(self._ready)

    @property
    def next(self) -> float | None:
        """When the next one comes; None if none does before an answer."""
        return self._ready[0][0] if self._ready else None

    def take(self) -> tuple[float, int, TraceLine]:
        """The next one: when, its number, and the line."""
        return heappop(self._ready)

    def ended(self, line: TraceLine, now: float) -> None:
        """A line has its answer."""
        turns = self._turns.get(line.session or "")
        if turns and line.session is not None:
            number, following = turns.pop()
            heappush(self._ready, (max(following.arrival, now), number, following))


class _Run:
    """One simulation; see `simulate`."""

    def __init__(self, lines: Sequence[TraceLine], setup: Setup):
        limits = setup.limits
        device = (
            CheckingDevice(limits, setup.acceptance)
            if setup.check
            else CountingDevice(limits.max_draft, DraftLaw((setup.acceptance,)))
        )
        self._lines = lines
        self._check = setup.check
        self._clock = Clock()
        self._runner = TimedRunner(device, limits, setup.cost, self._clock)
        self._scheduler = Scheduler(limits, setup.policy)
        self._served: dict[str, Served] = {}
        self._observer = _Observer(self._clock, self._scheduler, self._served)
        self._core = EngineCore(
            self._scheduler,
            self._runner,
            self._clock,
            async_scheduling=setup.overlap,
            recorder=self._observer,
        )
        self._arrivals = _Arrivals(lines)
        self._oracle = Oracle(limits.page_tokens)
        self._talk = Conversations()
        self._open: dict[str, tuple[tuple[int, ...], list[int]]] = {}  # prompt and answer so far

    def run(self) -> Outcome:
        while True:
            self._arrive()
            if self._core.idle:
                following = self._arrivals.next
                if following is None:
                    break
                self._clock.now = max(self._clock.now, following)
                continue
            for news in self._core.step().progress:
                self._hear(news)
            if self._check:
                problems = self._scheduler.check()
                assert not problems, problems
        served = sorted(self._served.values(), key=lambda entry: entry.number)
        seconds, busy = self._clock.now, self._runner.busy
        return Outcome(served, self._observer.points, seconds, busy, self._observer.plans)

    def _arrive(self) -> None:
        while (when := self._arrivals.next) is not None and when <= self._clock.now:
            arrival, number, line = self._arrivals.take()
            name, prompt = str(number), self._talk.prompt(number, line)
            entry = self._served[name] = Served(number, arrival, len(prompt))
            request = Request(
                request_id=name,
                prompt_token_ids=prompt,
                params=SamplingParams(max_tokens=line.output_tokens, ignore_eos=True),
                seed=stream_number(f"answer {number}"),
                arrival=arrival,
            )
            try:
                self._core.add(request)
            except RequestError as error:
                entry.error = str(error)
                self._arrivals.ended(line, arrival)
                continue
            entry.oracle = self._oracle.arrived(prompt)
            self._open[name] = (prompt, [])

    def _hear(self, news: Progress) -> None:
        prompt, answer = self._open[news.request_id]
        answer += news.token_ids
        if news.finish_reason is None:
            return
        del self._open[news.request_id]
        entry = self._served[news.request_id]
        line = self._lines[entry.number]
        assert news.metrics is not None, "the last news has times"
        entry.output_tokens, entry.error = len(answer), news.error
        entry.first_token, entry.finished = news.metrics.first_token, news.metrics.finished
        entry.preemptions = news.metrics.preemptions
        self._oracle.answered(prompt, answer)
        self._talk.answered(line, prompt, answer)
        self._arrivals.ended(line, self._clock.now)


def simulate(lines: Sequence[TraceLine], setup: Setup) -> Outcome:
    """Serve a trace.

    Args:
        lines: in order of arrival (`trace.read_trace`).
        setup: what serves it.
    """
    return _Run(lines, setup).run()
