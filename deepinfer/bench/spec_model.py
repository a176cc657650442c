"""Drafts planned for a made-up device: adaptive numbers of them beside every fixed one.

Planner and loop are the engine's; a step takes the time of a cost, and drafts are right by chance.
Knows no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from deepinfer.bench.simulate.cost import StepCost
from deepinfer.bench.simulate.device import Clock, CountingDevice, TimedRunner
from deepinfer.bench.simulate.drafts import DraftLaw
from deepinfer.bench.simulate.trace import stream_number
from deepinfer.engine.core import EngineCore
from deepinfer.request import Request, SamplingParams
from deepinfer.scheduler import THROUGHPUT, Drafting, Limits, Scheduler

MOST = 5  # drafts a row
ROWS = (4, 8, 16, 32, 64, 128)
ACCEPTANCE = (0.5, 0.75, 0.9)
COSTS = {
    # One H200 as a rank of 64: a step reads weights until arithmetic takes longer.
    "rank": StepCost(base=8e-3, decode_row=60e-6, draft=60e-6, context_token=0, host=0),
    # Products in tiles of 64 tokens: a staircase.
    "tiles": StepCost(
        base=4e-3, decode_row=1.5e-3 / 64, draft=1.5e-3 / 64, context_token=0, tile=64, host=0
    ),
}
_BOAST = 1.7  # the drafter is too sure of itself, as trained ones are
_PASS = 0.05  # of the time of the smallest step: the draft stages, in every step of who has them
_PROMPT = 8
_PHASES = (16, 128, 4, 64, 8, 32, 128, 16)  # requests that come together, in the mix
_MIX_TOKENS = 160  # a request, about


class Pace(NamedTuple):
    """Tokens a simulated second: from the first step on, and when there was time to learn."""

    cold: float
    warm: float


def pace(
    cost: StepCost,
    acceptance: Sequence[float],
    rows: int,
    fixed: int | None,
    *,
    learn: int = 256,
    steps: int = 512,
) -> Pace:
    """How fast so many requests decode.

    Args:
        cost: of a step.
        acceptance: of the drafts; with several numbers the requests differ.
        rows: requests.
        fixed: drafts a row in every step; None = adaptive.
        learn: steps before those that count as warm.
        steps: that count as warm.
    """
    core, clock = _engine(cost, acceptance, rows, fixed, learn + steps)
    for number in range(rows):
        _add(core, str(number), number, core.scheduler.limits.max_model_len - _PROMPT)
    marks: list[tuple[float, int]] = []
    for count in (3, learn, steps):
        for _ in range(count):
            core.step()
        marks.append((clock.now, core.scheduler.snapshot().generated))
    (start, none), (middle, some), (end, all_) = marks
    return Pace((all_ - none) / (end - start), (all_ - some) / (end - middle))


def mix(cost: StepCost, fixed: int | None) -> float:
    """Simulated seconds for the same tokens in phases of few and many requests, one engine.

    Args:
        cost: of a step.
        fixed: drafts a row in every step; None = adaptive.
    """
    core, clock = _engine(cost, ACCEPTANCE, max(ROWS), fixed, 2 * _MIX_TOKENS)
    for phase, rows in enumerate(_PHASES):
        for number in range(rows):
            _add(core, f"{phase}-{number}", number, _MIX_TOKENS + number % 7 * 8)
        while not core.idle:
            core.step()
    return clock.now


def _engine(
    cost: StepCost, acceptance: Sequence[float], rows: int, fixed: int | None, steps: int
) -> tuple[EngineCore, Clock]:
    most = MOST if fixed is None else fixed
    longest = _PROMPT + (steps + 16) * (1 + most)
    limits = Limits(
        num_pages=rows * (longest // 128 + 2),
        num_slots=rows + rows // 8,
        max_model_len=longest,
        max_num_batched_tokens=rows * (1 + most) + 64,
        max_num_seqs=rows,
        max_draft=most,
        drafting=Drafting(adaptive=fixed is None),
    )
    clock = Clock()
    law = DraftLaw(acceptance, boast=_BOAST)
    spent = cost if not most else replace(cost, base=cost.base * (1 + _PASS))
    runner = TimedRunner(CountingDevice(most, law), limits, spent, clock)
    policy = replace(THROUGHPUT, draft_tokens=1 << 30)
    return EngineCore(Scheduler(limits, policy), runner, clock, async_scheduling=True), clock


def _add(core: EngineCore, name: str, number: int, tokens: int) -> None:
    """Queue a request; its number chooses among the acceptances."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    seed = stream_number(f"spec {name}") // 3 * 3 + number % 3
    core.add(Request(name, (7,) * _PROMPT, params, seed=seed % (1 << 64)))
