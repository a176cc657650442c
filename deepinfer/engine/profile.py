"""Times decoding steps of all sizes before the first request, so that budgets of drafts start well.

Contexts are short here; real steps correct the times. Knows nothing of how budgets are chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from deepinfer.runner.runner import TorchRunner
from deepinfer.scheduler import Limits, Scheduler
from deepinfer.scheduler.costs import TRUSTED
from deepinfer.scheduler.speculation import Size
from deepinfer.step import Admit, DraftCap, PageAppend, RowSampling, StepPlan


def profile(
    scheduler: Scheduler, runner: TorchRunner, seconds: float, clock: Callable[[], float]
) -> int:
    """Run steps of made-up rows and tell the scheduler how long they take.

    Small and large batches come first, so that little time is better than none.

    Args:
        scheduler: without requests.
        runner: its runner, without rows; it has none afterwards.
        seconds: to spend; the step that exceeds it is the last.
        clock: seconds, monotonic.

    Returns:
        the number of steps timed.
    """
    limits, end, timed = scheduler.limits, clock() + seconds, 0
    numbers = itertools.count(-1, -1)
    for rows in _batches(limits):
        if clock() >= end:
            break
        graph_rows, entered = limits.graph_rows(rows), False
        for drafts in _budgets(rows, limits):
            if clock() >= end:
                break
            plan = StepPlan(
                next(numbers),
                draft_budget=drafts,
                graph_rows=graph_rows,
                max_len_hi=_longest(limits),
            )
            plan = plan if entered else replace(plan, **_entry(rows, limits))
            spent = _run(runner, plan)
            scheduler.speculation.plain.add(Size(rows, 0, drafts, graph_rows).tokens, spent)
            entered, timed = True, timed + 1
        runner.clear()
    return timed


def _run(runner: TorchRunner, plan: StepPlan) -> float:
    """Run a step; returns the seconds it took."""
    runner.forward(plan)
    runner.sample(plan.number)
    runner.draft(plan.number)
    return runner.collect(plan.number).seconds


def _longest(limits: Limits) -> int:
    return min(limits.page_tokens, limits.max_model_len)


def _batches(limits: Limits) -> Iterator[int]:
    """Numbers of rows, from both ends to the middle; each has one page."""
    most = min(limits.max_num_seqs, limits.num_pages)
    sizes: Sequence[int] = limits.graph_sizes or [1 << i for i in range(most.bit_length())]
    left = sorted({min(size, most) for size in (*sizes, most)})
    while left:
        yield left.pop(0)
        if left:
            yield left.pop()


def _budgets(rows: int, limits: Limits) -> Iterator[int]:
    """Drafts of one step after another: none, one a row and so on, each often enough to count."""
    for level in range(limits.max_draft + 1):
        budget = rows * level
        if rows + budget <= limits.max_num_batched_tokens:
            yield from itertools.repeat(budget, TRUSTED)


def admitted(row: int, tokens: int, limit: int) -> Admit:
    """A made-up greedy request of so many tokens that may know `limit` of them."""
    return Admit(
        row=row,
        slot=row,
        ids=(0,) * tokens,
        prompt_len=tokens,
        cached=0,
        encoder_start=0,
        decoder_start=0,
        limit=limit,
        end_id=-1,
        stop_ids=(),
        seed=row,
        sample=0,
        sampling=RowSampling(temperature=0.0),
    )


def _entry(rows: int, limits: Limits) -> dict[str, Any]:
    """What lets rows of one token enter, which decode from the first step on."""
    every = range(1, rows + 1)
    return {
        "admit": tuple(admitted(row, 1, _longest(limits)) for row in every),
        "pages": tuple(PageAppend(row, 0, row) for row in every),
        "decode_add": tuple(every),
        "draft_cap": tuple(DraftCap(row, limits.max_draft) for row in every),
    }
