"""A naive model of generation, and the loop around a scheduler that the tests share."""

from collections import deque
from collections.abc import Collection
from dataclasses import replace

from deepinfer.request import Request, SamplingParams
from deepinfer.scheduler import (
    THROUGHPUT,
    Limits,
    Policy,
    Progress,
    Scheduler,
    ShadowDevice,
    next_token,
)
from deepinfer.scheduler.shadow import DrafterSpec
from deepinfer.step import StepPlan, StepResult

VOCABULARY = 23  # small, so that end and stop ids come up often
END = 0
LIMITS = Limits(
    num_pages=16,
    num_slots=5,
    max_model_len=60,
    max_num_batched_tokens=16,
    max_num_seqs=4,
    page_tokens=4,
)


def request(name, prompt, max_tokens, *, stops=(), min_tokens=0, priority=0, seed=None):
    return Request(
        request_id=str(name),
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens),
        seed=int(name) if seed is None else seed,
        priority=priority,
        stop_ids=frozenset(stops),
    )


def naive(asked: Request, max_model_len: int, nan_at: Collection[tuple[int, int]] = ()):
    """Tokens, finish reason and stop id of one request, computed alone, a token at a time."""
    known, new = list(asked.prompt_token_ids), []
    room = min(asked.params.max_tokens, max_model_len - len(known))
    while True:
        if (asked.seed, len(known)) in nan_at:
            return new, "error", None
        barred = asked.stop_ids | {-1} if len(new) < asked.params.min_tokens else ()
        token = next_token(known, asked.seed, barred=barred, vocabulary=VOCABULARY)
        known.append(token)
        new.append(token)
        if token in asked.stop_ids:
            return new, "stop", None if token == END else token
        if len(new) == room:
            return new, "length", None


class Drive:
    """A scheduler, a shadow device, and everything that was said between them."""

    def __init__(
        self,
        limits: Limits = LIMITS,
        policy: Policy = THROUGHPUT,
        *,
        drafter: DrafterSpec | None = None,
        nan_at: Collection[tuple[int, int]] = (),
        overlap=True,
    ):
        self.limits = limits
        self.scheduler = Scheduler(limits, policy, end_id=END)
        self.device = ShadowDevice(limits, drafter=drafter, nan_at=nan_at, vocabulary=VOCABULARY)
        self.overlap = overlap
        self.uncollected: deque[int] = deque()
        self.plans: list[StepPlan] = []
        self.results: list[StepResult] = []
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, Progress] = {}
        self.in_row: dict[int, str] = {}

    def add(self, asked: Request):
        self.scheduler.add(asked)
        self.tokens[asked.request_id] = []
        self.last.pop(asked.request_id, None)

    def plan(self) -> StepPlan | None:
        plan = self.scheduler.plan(float(len(self.plans)))
        if plan is not None:
            assert plan == StepPlan.from_json(plan.to_json())
            self.device.forward(plan)
            self.device.sample(plan.number)
            self.device.draft(plan.number)
            self.plans.append(plan)
            self.uncollected.append(plan.number)
        self.check()
        return plan

    def collect(self):
        result = self.device.collect(self.uncollected.popleft())
        self.results.append(result)
        self.hear(self.scheduler.apply(result, float(len(self.plans))))
        self.check()

    def hear(self, news):
        for item in news:
            assert item.request_id not in self.last, "news after the last news"
            self.tokens[item.request_id] += item.token_ids
            if item.finish_reason is not None:
                self.last[item.request_id] = item
            else:
                assert item.token_ids

    def check(self):
        assert self.scheduler.check() == []

    def step(self) -> StepPlan | None:
        """One turn of an engine's loop."""
        plan = self.plan()
        if self.uncollected and (plan is None or len(self.uncollected) > self.overlap):
            self.collect()
        return plan

    def compute(self) -> StepPlan:
        """One turn that has something to compute."""
        plan = self.step()
        assert plan is not None
        return plan

    def run(self, bound=3000):
        """Turn the loop until nothing is left to do."""
        for _ in range(bound):
            if self.scheduler.idle:
                break
            self.step()
            if not (self.uncollected or self.scheduler.snapshot().waiting):
                self.hear(self.scheduler.take_reports())
        assert self.scheduler.idle, f"not idle after {bound} turns: {self.scheduler.snapshot()}"
        snapshot = self.scheduler.snapshot()
        assert (snapshot.pages_used, snapshot.pages_free) == (0, self.limits.num_pages)
        return self

    def outcome(self, name):
        last = self.last[str(name)]
        return self.tokens[str(name)], last.finish_reason, last.stop_id


def with_drafts(most: int, limits: Limits = LIMITS) -> Limits:
    return replace(limits, max_draft=most)
