"""Engines over tiny networks and over the hash device, for tests of the loop around them."""

import itertools
from collections.abc import Sequence

from deepinfer.arch import PAGE_TOKENS
from deepinfer.cache import pages_for
from deepinfer.engine.border import Border
from deepinfer.engine.core import EngineCore
from deepinfer.engine.service import Service
from deepinfer.model.network import Network
from deepinfer.request import RequestOutput, SamplingParams
from deepinfer.runner.rows import RowLimits
from deepinfer.runner.runner import Proposer, TorchRunner
from deepinfer.runner.verification import RuleName
from deepinfer.scheduler import THROUGHPUT, Limits, Scheduler
from tests.model.networks import network, tokens

LIMITS = Limits(
    num_pages=12, num_slots=9, max_model_len=200, max_num_batched_tokens=24, max_num_seqs=6
)


def core(
    net: Network,
    limits: Limits = LIMITS,
    *,
    async_scheduling: bool = False,
    proposer: Proposer | None = None,
    compact: bool = True,
    verification: RuleName = "match",
) -> EngineCore:
    """A torch engine; its clock counts calls."""
    rows = RowLimits(
        rows=limits.num_slots + 1,
        tokens=limits.max_model_len,
        pages=pages_for(limits.max_model_len, PAGE_TOKENS),
        drafts=limits.max_draft,
    )
    places = 0 if limits.caching is None else limits.caching.snapshots
    runner = TorchRunner(
        net,
        rows,
        pages=limits.num_pages + 1,
        proposer=proposer,
        snapshots=places,
        compact=compact,
        verification=verification,
    )
    scheduler = Scheduler(limits, THROUGHPUT, end_id=net.arch.eos_token_id)
    ticks = itertools.count()
    return EngineCore(
        scheduler, runner, lambda: float(next(ticks)), async_scheduling=async_scheduling
    )


def service(
    mode: str = "checkpoint",
    limits: Limits = LIMITS,
    *,
    async_scheduling: bool = False,
    proposer: Proposer | None = None,
    compact: bool = True,
    verification: RuleName = "match",
) -> Service:
    """An engine without text over the tiny network."""
    net = network(mode)
    border = Border(net.arch, None, limits.max_model_len, max_logprobs=1000)
    engine = core(
        net,
        limits,
        async_scheduling=async_scheduling,
        proposer=proposer,
        compact=compact,
        verification=verification,
    )
    seeds = itertools.count(100)
    return Service(border, engine, lambda: next(seeds))


def run_all(
    engine: Service, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
) -> list[RequestOutput]:
    """Results in order; every step's invariants are checked."""
    done: dict[str, RequestOutput] = {}
    for i, (prompt, values) in enumerate(zip(prompts, params, strict=True)):
        engine.add(str(i), list(prompt), values)
    for _ in range(5000):
        if engine.idle:
            break
        for output in engine.step():
            if output.finished:
                assert output.request_id not in done, "one last result a request"
                done[output.request_id] = output
        assert engine.core.scheduler.check() == []
    return [done[str(i)] for i in range(len(prompts))]


def some_prompts(count: int, longest: int = 60) -> list[list[int]]:
    net = network()
    return [tokens(net, 1 + (17 * i + 5) % longest, i) for i in range(count)]
