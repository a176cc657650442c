"""Tries whether results depend on anything but prompt, parameters and seed.

The same probe requests run in company of different sizes, in different chunks, with and without
preemption, overlap and threads; every run must give the same tokens and log-probability bits.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import torch

from deepinfer.arch import PAGE_TOKENS
from deepinfer.cache import pages_for
from deepinfer.device import find_device
from deepinfer.engine.border import Border
from deepinfer.engine.build import build_core, load, with_sharing
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.service import Service
from deepinfer.model.network import Network
from deepinfer.request import RequestOutput, SamplingParams
from deepinfer.scheduler import Limits

_SPARE_ROWS = 2

Drafts = int | Literal["adaptive"]


@dataclass(frozen=True)
class Grid:
    """What is varied.

    Attributes:
        batches: numbers of requests.
        chunks: tokens a step, 0 = everything at once.
        threads: CPU threads.
        drafts: drafts verified a step and row; "adaptive" = chosen step by step, at most as many as
            the largest number beside it, or 5.
        preempt: also with too few pages.
        repeat: serve the probes a second time, from what the first left in the prefix cache.
        prompt_tokens, max_tokens: of the longest probe.
    """

    batches: tuple[int, ...] = (1, 17, 64)
    chunks: tuple[int, ...] = (1, 7, 64, 0)
    threads: tuple[int, ...] = (1, 2)
    drafts: tuple[Drafts, ...] = (0,)
    preempt: bool = False
    repeat: bool = False
    prompt_tokens: int = 150
    max_tokens: int = 12


@dataclass(frozen=True)
class Run:
    """One run: its settings in words, the digest of the probes' results, preemptions seen."""

    name: str
    digest: str
    preemptions: int


class _Setting(NamedTuple):
    batch: int
    chunk: int
    threads: int
    drafts: Drafts
    preempt: bool


@dataclass(frozen=True)
class Report:
    """All runs; the promise is kept if `distinct_digests` is 1."""

    distinct_digests: int
    runs: tuple[Run, ...]


def check_invariance(
    directory: Path,
    options: EngineOptions,
    grid: Grid,
    tell: Callable[[Run], None] = lambda _run: None,
) -> Report:
    """Run the grid on one loaded model.

    Args:
        directory: the checkpoint directory.
        options: device, numerics, policy and implementations.
        grid: what is varied.
        tell: called with each run as it ends.

    Raises:
        DeepinferError: the model cannot be loaded as asked for.
    """
    network = load(directory, find_device(options.device), options)
    before = torch.get_num_threads()
    try:
        runs: list[Run] = []
        for setting in _settings(grid):
            for run in _run(network, options, grid, setting):
                tell(run)
                runs.append(run)
    finally:
        torch.set_num_threads(before)
    return Report(len({run.digest for run in runs}), tuple(runs))


def _settings(grid: Grid) -> Iterator[_Setting]:
    pressures = (False, True) if grid.preempt else (False,)
    axes = (grid.batches, grid.chunks, grid.threads, grid.drafts, pressures)
    yield from itertools.starmap(_Setting, itertools.product(*axes))


def _run(
    network: Network,
    options: EngineOptions,
    grid: Grid,
    setting: _Setting,
) -> Iterator[Run]:
    batch, chunk, threads, drafts, preempt = setting
    torch.set_num_threads(threads)
    probes, company = _probes(network, grid), _company(network, grid, batch)
    longest = max(len(ids) for ids, _ in (*probes, *company)) + grid.max_tokens
    pages = pages_for(longest, PAGE_TOKENS)
    rows = min(batch, len(probes) + len(company))
    limits = Limits(
        num_pages=pages if preempt else pages * (rows + _SPARE_ROWS),
        num_slots=rows + _SPARE_ROWS,
        max_model_len=longest,
        max_num_batched_tokens=max(chunk, rows) if chunk else rows * longest,
        max_num_seqs=rows,
    )
    options = dataclasses.replace(options, speculative_config=_drafting(drafts, grid))
    limits = with_sharing(limits, network, options, b"the only model here")
    # Overlap alternates with the settings, so that both are tried in every run of the grid.
    overlap = (batch + chunk + threads) % 2 == 0
    core = build_core(network, limits, dataclasses.replace(options, async_scheduling=overlap))
    border = Border(network.arch, None, longest, max_logprobs=5)
    name = f"batch {batch}, chunk {chunk or 'all'}, {threads} thread(s)"
    name += f", {drafts} drafts" * bool(drafts) + ", few pages" * preempt + ", overlap" * overlap
    service = Service(border, core, lambda: 0)
    for again in (False, True)[: 1 + grid.repeat]:
        outputs = _serve(service, probes, company)
        digest = hashlib.sha256()
        for output in outputs[: len(probes)]:
            _digest(output, digest)
        counters = core.scheduler.snapshot()
        yield Run(name + ", again" * again, digest.hexdigest()[:16], counters.preemptions)


def _drafting(drafts: Drafts, grid: Grid) -> dict[str, object]:
    """`speculative_config` of a setting."""
    if drafts != "adaptive":
        return {"num_speculative_tokens": drafts}
    most = max((count for count in grid.drafts if count != "adaptive"), default=0) or 5
    return {"num_speculative_tokens": most, "policy": "adaptive"}


_Item = tuple[list[int], SamplingParams]


def _ids(network: Network, count: int, source: random.Random) -> list[int]:
    arch = network.arch
    usual = [i for i in range(3, min(arch.vocab_size, 900)) if i != arch.image_token_id]
    return [source.choice(usual) for _ in range(count)]


def _probes(network: Network, grid: Grid) -> list[_Item]:
    """Four requests: greedy and drawn, short and long."""
    source = random.Random(1)
    lengths = (grid.prompt_tokens, 9, max(grid.prompt_tokens // 2, 1), 1)
    common = {"max_tokens": grid.max_tokens, "ignore_eos": True, "logprobs": 1, "detokenize": False}
    params = (
        SamplingParams(temperature=0, **common),
        SamplingParams(seed=11, **common),
        SamplingParams(seed=12, top_k=20, top_p=0.9, repetition_penalty=1.2, **common),
        SamplingParams(temperature=0, **common),
    )
    return [(_ids(network, n, source), p) for n, p in zip(lengths, params, strict=True)]


def _company(network: Network, grid: Grid, batch: int) -> list[_Item]:
    """Other requests, so that `batch` run together; another crowd for each size."""
    source = random.Random(1000 + batch)
    params = SamplingParams(max_tokens=grid.max_tokens, seed=1, ignore_eos=True, detokenize=False)
    return [
        (_ids(network, source.randint(1, grid.prompt_tokens), source), params)
        for _ in range(max(batch - 4, 0))
    ]


def _serve(service: Service, probes: list[_Item], company: list[_Item]) -> list[RequestOutput]:
    """Results of the probes, which stand in the middle of their company."""
    half = len(company) // 2
    order = [*company[:half], *probes, *company[half:]]
    for i, (ids, params) in enumerate(order):
        service.add(str(i), ids, params)
    done: dict[int, RequestOutput] = {}
    while not service.idle:
        done |= {int(o.request_id): o for o in service.step() if o.finished}
    return [done[half + i] for i in range(len(probes))]


def _digest(output: RequestOutput, digest: hashlib._Hash) -> None:
    completion = output.outputs[0]
    digest.update(repr((completion.token_ids, completion.finish_reason)).encode())
    for entries in completion.logprobs or ():
        for token, entry in entries.items():
            digest.update(f"{token} {entry.logprob.hex()} {entry.rank}".encode())
