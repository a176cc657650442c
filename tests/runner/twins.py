"""Two runners that carry out the same plans, one with graphs; every result must be equal."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from deepinfer.cache import pages_for
from deepinfer.device import Graphs
from deepinfer.engine.border import Border
from deepinfer.engine.core import EngineCore, Runner
from deepinfer.engine.masks import Masks, Matcher
from deepinfer.engine.service import Service
from deepinfer.model.dummy import DummySource
from deepinfer.model.network import Network
from deepinfer.model.numerics import numerics
from deepinfer.model.operations import Operations
from deepinfer.model.weights import WeightLoader
from deepinfer.request import Request, RequestOutput, SamplingParams
from deepinfer.runner.rows import RowLimits
from deepinfer.runner.runner import Proposal, Proposer, TorchRunner
from deepinfer.scheduler import THROUGHPUT, Limits, Scheduler
from deepinfer.step import StepMasks, StepPlan, StepResult, TopLogprobs
from tests.model.networks import CPU, hash_map, with_engram

LIMITS = Limits(
    num_pages=24,
    num_slots=11,
    max_model_len=300,
    max_num_batched_tokens=160,
    max_num_seqs=8,
    graph_sizes=(1, 2, 4, 8),
)


@functools.cache
def capturable(mode: str, device: torch.device = CPU) -> Network:
    """The small network with operations that can be captured."""
    arch, kind = with_engram(), numerics(mode)
    ops = Operations.bind(arch, kind, "none", {"*": "reference", "experts": "every"})
    weights = WeightLoader(DummySource(arch, 7), arch, ops, kind, device).load()
    return Network(arch, kind, ops, weights, hash_map(arch))


class EchoProposer:
    """Drafts that are right now and then: the row's own last tokens again, some of them spoiled."""

    graph_safe = True

    def __init__(self, drafts: int):
        self.drafts = drafts

    def seed(self, forward, state):
        pass

    def propose(self, rows, groups, state, drawing):
        places = torch.arange(self.drafts, device=rows.device)
        back = rows.length[groups].unsqueeze(1) - self.drafts + places
        tokens = rows.tokens[groups.unsqueeze(1), back.clamp(min=0)]
        spoiled = (rows.length[groups] % 3 == 0).unsqueeze(1)
        confidence = tokens.to(torch.float32) / 100
        return Proposal(torch.where(spoiled, 50, tokens), confidence)


def runner(
    net: Network,
    limits: Limits,
    graphs: Graphs | None = None,
    proposer: Proposer | None = None,
) -> TorchRunner:
    """A runner with the sizes of `limits`."""
    rows = RowLimits(
        rows=limits.num_slots + 1,
        tokens=limits.max_model_len,
        pages=pages_for(limits.max_model_len, limits.page_tokens),
        drafts=limits.max_draft,
    )
    made = TorchRunner(net, rows, pages=limits.num_pages + 1, proposer=proposer, graphs=graphs)
    for pool in (made.state.pages, made.state.slots):
        pool.fill_(255)  # NaN in every format: nothing may read what no request wrote
    return made


class Twins:
    """Runs every plan on both and compares what comes of it."""

    def __init__(self, plain: TorchRunner, other: TorchRunner):
        self.plain, self.other = plain, other
        self.plans: dict[int, StepPlan] = {}
        self.compared = 0

    def forward(self, plan: StepPlan) -> None:
        self.plans[plan.number] = plan
        self.plain.forward(plan)
        self.other.forward(plan)

    def sample(self, number: int, masks: StepMasks | None = None) -> None:
        self.plain.sample(number, masks)
        self.other.sample(number, masks)

    def draft(self, number: int) -> None:
        self.plain.draft(number)
        self.other.draft(number)

    def collect(self, number: int) -> StepResult:
        first, second = self.plain.collect(number), self.other.collect(number)
        assert same(first, second), (
            f"step {number}: {differing(first, second)} {self.plans[number]}"
        )
        self.compared += 1
        return first


def differing(first: StepResult, second: StepResult) -> dict[str, object]:
    """The arrays of two results that are not equal, by name."""
    pairs = ((item.name, getattr(first, item.name), getattr(second, item.name))
             for item in dataclasses.fields(first))  # fmt: skip
    return {
        name: (one.tolist(), two.tolist())
        for name, one, two in pairs
        if isinstance(one, np.ndarray) and not np.array_equal(one, two)
    }


def same(first: StepResult, second: StepResult) -> bool:
    if not first.equal(second) or (first.logprobs is None) != (second.logprobs is None):
        return False
    if first.logprobs is None or second.logprobs is None:
        return True
    # Columns without a token mean nothing.
    used = first.tokens >= 0
    return all(
        np.array_equal(a[used], b[used])
        for a, b in zip(_parts(first.logprobs), _parts(second.logprobs), strict=True)
    )


def _parts(found: TopLogprobs) -> tuple[np.ndarray, ...]:
    return found.chosen, found.ranks, found.ids, found.values


def serve(
    net: Network,
    made: Runner,
    limits: Limits,
    prompts: Sequence[Sequence[int]],
    params: Sequence[SamplingParams],
    *,
    ahead: bool,
    late: int = 0,
    matchers: Mapping[int, Matcher] | None = None,
    patience: float = 60.0,
) -> list[RequestOutput]:
    """Results in order; the last `late` requests arrive one by one while others decode.

    `matchers` constrain requests by place; a step waits for their masks for `patience` seconds.
    """
    ticks = itertools.count()
    scheduler = Scheduler(limits, THROUGHPUT, end_id=net.arch.eos_token_id)
    core = EngineCore(scheduler, made, lambda: float(next(ticks)), async_scheduling=ahead)
    core.masks = Masks(limits.max_draft, patience)
    constrained, add = matchers or {}, core.add

    def enter(request: Request) -> None:
        matcher = constrained.get(int(request.request_id))
        request = dataclasses.replace(request, constrained=matcher is not None)
        add(request, matcher, -(-net.arch.vocab_size // 32))

    core.add = enter  # pyright: ignore[reportAttributeAccessIssue]
    engine = Service(Border(net.arch, None, limits.max_model_len, max_logprobs=1000), core)
    waiting = list(enumerate(zip(prompts, params, strict=True)))
    early = len(waiting) - late
    for place, (prompt, wanted) in waiting[:early]:
        engine.add(str(place), list(prompt), wanted)
    later = iter(waiting[early:])
    outputs: dict[int, RequestOutput] = {}
    for step in itertools.count():
        if step % 4 == 3 and (item := next(later, None)) is not None:
            engine.add(str(item[0]), list(item[1][0]), item[1][1])
        if engine.idle and len(outputs) == len(waiting):
            break
        outputs |= {int(o.request_id): o for o in engine.step() if o.finished}
    core.close()
    return [outputs[place] for place, _ in waiting]
