"""CPU time of planning: microseconds a row a step of `plan` and `apply`, beside a fixed loop.

The device is arrays that follow the rules of the contract, and is not timed. Knows no model.
"""

from __future__ import annotations

import json as jsonlib
import platform
import sys
from time import process_time
from typing import TypedDict

import numpy as np

from deepinfer.request import Request, SamplingParams
from deepinfer.scheduler import THROUGHPUT, Drafting, Limits, Scheduler
from deepinfer.step import FLAG_LIMIT, StepPlan, StepResult

ROWS = (64, 256, 512)
DRAFTS = ((0, False), (3, False), (5, True))  # and whether adaptive
_PROMPT = 120
_STEPS = 600
_WARM_UP = 150
_LOOP = 200_000


class SchedulerRecord(TypedDict):
    """One row of the result.

    `us_per_row` = `plan_us_per_row` + `apply_us_per_row`; adding requests counts as planning.
    `loop_ns`: one turn of the calibration loop in this run; `loops_per_row`: their ratio.
    `turnover`: part of the rows that finish and are replaced in a step, measured.
    """

    name: str
    rows: int
    drafts: int
    adaptive: bool
    turnover: float
    us_per_row: float
    plan_us_per_row: float
    apply_us_per_row: float
    loop_ns: float
    loops_per_row: float
    python: str
    numpy: str
    machine: str


class _Tally:
    """A device that only counts: lengths and limits, no tokens.

    Of a row's drafts as many are accepted as (row + step) mod (drafts + 1) says: half of them.
    Confidences are random, and a step of many tokens takes longer, so that a planner may choose.
    """

    def __init__(self, limits: Limits):
        self.drafts = limits.max_draft
        self.length, self.limit = np.zeros((2, limits.num_slots + 1), np.int64)
        self.decoding = np.zeros(0, np.int64)
        confidence = np.random.default_rng(0).normal(1, 1, (limits.num_slots * 2, self.drafts))
        self._confidence = confidence.astype(np.float32)

    def run(self, plan: StepPlan) -> StepResult:
        for admit in plan.admit:
            self.length[admit.row] = len(admit.ids)
            self.limit[admit.row] = admit.limit
        if plan.decode_add or plan.decode_remove:
            kept = np.setdiff1d(self.decoding, np.array(plan.decode_remove, np.int64))
            self.decoding = np.union1d(kept, np.array(plan.decode_add, np.int64))
        emits = np.array([piece.row for piece in plan.prefill if piece.emits], np.int64)
        row = np.concatenate([self.decoding, emits])
        left = self.limit[row] - self.length[row]
        want = np.minimum(self.drafts, np.maximum(left - 1, 0))
        want[len(self.decoding) :] = 0
        before = np.cumsum(want) - want
        verified = np.clip(plan.draft_budget - before, 0, want)
        accepted = np.minimum((row + plan.number) % (self.drafts + 1), verified)
        generated = np.minimum(accepted + 1, left)
        self.length[row] += generated
        tokens = np.where(np.arange(1 + self.drafts) < generated[:, None], 7, -1)
        ended = (left > 0) & (self.length[row] >= self.limit[row])
        return StepResult(
            number=plan.number,
            row=row.astype(np.int32),
            verified=verified.astype(np.int32),
            accepted=accepted.astype(np.int32),
            tokens=tokens.astype(np.int32),
            flags=np.where(ended, FLAG_LIMIT, 0).astype(np.int32),
            confidence=self._confidence[plan.number % 64 :][: len(row)].copy(),
            seconds=4e-3 + 1e-3 * ((len(row) + plan.draft_budget) // 64),
        )


def _request(number: int, mean: int) -> Request:
    """Outputs between half and one and a half of `mean` tokens, so that ends are spread."""
    tokens = mean // 2 + number * 37 % mean
    return Request(str(number), (7,) * _PROMPT, SamplingParams(max_tokens=tokens), seed=number)


def loop_ns() -> float:
    """Nanoseconds of one turn of a plain loop, the best of five."""
    best = float("inf")
    for _ in range(5):
        start, total = process_time(), 0
        for i in range(_LOOP):
            total += i & 7
        best = min(best, process_time() - start)
    return best / _LOOP * 1e9


def measure(rows: int, drafts: int, adaptive: bool, loop: float) -> SchedulerRecord:
    """One point: `rows` requests decode at all times, one in a hundred ends in a step."""
    limits = Limits(
        num_pages=rows * 8,
        num_slots=rows + rows // 8,
        max_model_len=1024,
        max_num_batched_tokens=8192,
        max_num_seqs=rows,
        max_draft=drafts,
        drafting=Drafting(adaptive),
    )
    scheduler, device = Scheduler(limits, THROUGHPUT), _Tally(limits)
    verified = min(1.0, THROUGHPUT.draft_tokens / (rows * drafts)) if drafts else 0.0
    verified = 0.8 if adaptive else verified
    mean = round(100 * (1 + drafts / 2 * verified))  # tokens; a request ends after 100 steps
    added = finished = 0
    ended = rows + rows // 8  # so many are added in the next step
    planning = applying = 0.0
    previous: StepResult | None = None
    for step in range(_WARM_UP + _STEPS):
        if step == _WARM_UP:
            planning = applying = 0.0
            finished = 0
        start = process_time()
        for _ in range(ended):
            scheduler.add(_request(added, mean))
            added += 1
        plan = scheduler.plan(0.0)
        planning += process_time() - start
        result = None if plan is None else device.run(plan)
        if previous is not None:
            start = process_time()
            news = scheduler.apply(previous, 0.0)
            applying += process_time() - start
            ended = sum(item.finish_reason is not None for item in news)
            finished += ended
        previous = result
    scale = 1e6 / (_STEPS * rows)
    total = (planning + applying) * scale
    return SchedulerRecord(
        name="scheduler",
        rows=rows,
        drafts=drafts,
        adaptive=adaptive,
        turnover=round(finished / (_STEPS * rows), 4),
        us_per_row=round(total, 3),
        plan_us_per_row=round(planning * scale, 3),
        apply_us_per_row=round(applying * scale, 3),
        loop_ns=round(loop, 2),
        loops_per_row=round(total * 1e3 / loop, 1),
        python=platform.python_version(),
        numpy=np.__version__,
        machine=platform.processor() or platform.machine(),
    )


def drafts_of(record: SchedulerRecord) -> str:
    """Drafts a row in words."""
    return f"up to {record['drafts']}" if record["adaptive"] else str(record["drafts"])


def run(json: bool) -> list[SchedulerRecord]:
    """Measure all points and print them.

    Args:
        json: one line of JSON a point instead of a table.
    """
    loop = loop_ns()
    records = [measure(rows, *drafts, loop) for drafts in DRAFTS for rows in ROWS]
    if json:
        for record in records:
            print(jsonlib.dumps(record))
        return records
    print(
        f"{'rows':>5} {'drafts':>8} {'ends':>6} {'us/row':>7} {'plan':>7} {'apply':>7}  loops/row"
    )
    for r in records:
        print(
            f"{r['rows']:5} {drafts_of(r):>8} {r['turnover']:6.2%} {r['us_per_row']:7.3f} "
            f"{r['plan_us_per_row']:7.3f} {r['apply_us_per_row']:7.3f}  {r['loops_per_row']:9.1f}"
        )
    print(f"one turn of a plain loop: {loop:.1f} ns, Python {sys.version.split()[0]}")
    return records
