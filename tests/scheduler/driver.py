"""A naive model of generation, and the loop around a scheduler that the tests share."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

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
from deepinfer.scheduler.hashes import fold, mix
from deepinfer.scheduler.shadow import DrafterSpec
from deepinfer.step import StepMasks, StepPlan, StepResult

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


def request(
    name, prompt, max_tokens, *, stops=(), min_tokens=0, priority=0, seed=None, constrained=False
):
    return Request(
        request_id=str(name),
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(max_tokens=max_tokens, min_tokens=min_tokens),
        seed=int(name) if seed is None else seed,
        priority=priority,
        stop_ids=frozenset(stops),
        constrained=constrained,
    )


def hash_mask(prefix: Sequence[int]):
    """The mask of a constrained request after these tokens: some ids, now and then all or none."""
    state = 1
    for token in prefix:
        state = fold(state, token)
    every = (1 << VOCABULARY) - 1
    bits = every if state % 8 == 0 else 0 if state % 61 == 0 else mix(state ^ 7) & every
    return np.array([bits], np.int32)


def naive(asked: Request, max_model_len: int, nan_at: Collection[tuple[int, int]] = ()):
    """Tokens, finish reason and stop id of one request, computed alone, a token at a time."""
    known, new = list(asked.prompt_token_ids), []
    room = min(asked.params.max_tokens, max_model_len - len(known))
    while True:
        if (asked.seed, len(known)) in nan_at:
            return new, "error", None
        barred = asked.stop_ids | {-1} if len(new) < asked.params.min_tokens else ()
        mask = hash_mask(known) if asked.constrained else None
        token = next_token(known, asked.seed, barred=barred, vocabulary=VOCABULARY, mask=mask)
        if token < 0:
            return new, "error", None
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
        late=0,
    ):
        self.limits = limits
        self.scheduler = Scheduler(limits, policy, end_id=END)
        self.device = ShadowDevice(limits, drafter=drafter, nan_at=nan_at, vocabulary=VOCABULARY)
        self.overlap = overlap
        self.late = late  # percent of masks that are not ready in time
        self.uncollected: deque[int] = deque()
        self.plans: list[StepPlan] = []
        self.results: list[StepResult] = []
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, Progress] = {}
        self.in_row: dict[int, str] = {}

    def add(self, asked: Request):
        self.scheduler.add(asked)
        self.prompts[asked.request_id] = asked.prompt_token_ids
        self.tokens[asked.request_id] = []
        self.last.pop(asked.request_id, None)

    def plan(self) -> StepPlan | None:
        plan = self.scheduler.plan(float(len(self.plans)))
        if plan is not None:
            assert plan == StepPlan.from_json(plan.to_json())
            self.device.forward(plan)
            masks = None
            if plan.masked:
                while self.uncollected:
                    self.collect()
                masks = self.masks(plan)
            self.device.sample(plan.number, masks)
            self.device.draft(plan.number)
            self.plans.append(plan)
            self.uncollected.append(plan.number)
        self.check()
        return plan

    def masks(self, plan: StepPlan) -> StepMasks:
        """Masks of a step, all results before it known; rows of ended requests are free."""
        emitting = {piece.row for piece in plan.prefill if piece.emits}
        rows, words, legal, free, late = [], [], [], [], []
        for row in plan.masked:
            name = self.scheduler.request_at(row)
            assert name is not None
            if name in self.last:
                free.append(row)
            elif mix(row + 1000 * plan.number) % 100 < self.late:
                late.append(row)
            else:
                known = [*self.prompts[name], *self.tokens[name]]
                drafts = [] if row in emitting else self._drafts(row)
                masks = [hash_mask([*known, *drafts[:i]]) for i in range(len(drafts) + 1)]
                good = [masks[i][0] >> id & 1 for i, id in enumerate(drafts)]
                rows.append(row)
                legal.append([*good, 0].index(0))
                empty = self.limits.max_draft - len(drafts)
                words.append([*masks, *[np.zeros(1, np.int32)] * empty])
        words = np.array(words, np.int32).reshape(-1, 1 + self.limits.max_draft, 1)
        masks = StepMasks(
            np.array(rows, np.int32), words, np.array(legal, np.int32), tuple(free), tuple(late)
        )
        assert masks.covers(plan.masked)
        return masks

    def _drafts(self, row: int) -> list[int]:
        # A row whose last mask was late may have been left out of the step after.
        result = next(r for r in reversed(self.results) if row in r.row)
        return [id for id in result.drafts[result.row.tolist().index(row)].tolist() if id >= 0]

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
