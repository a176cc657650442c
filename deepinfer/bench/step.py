"""Bench of whole decoding steps of one rank: direct against captured, and where the time goes.

Contexts are made up: pools are filled with random codes, rows are admitted as if their prompts had
been computed. What is timed is also checked bit by bit: graphs against direct steps, a row alone
against the same row in company. Knows nothing of schedulers.
"""

from __future__ import annotations

import copy
import itertools
import json as json_text
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from deepinfer.arch import PAGE_TOKENS
from deepinfer.bench.measure import environment, graph_us
from deepinfer.bench.slices import slice_arch, slice_network
from deepinfer.device import Device, Event, Graphs, find_device, no_sync
from deepinfer.model.block import Block
from deepinfer.model.load import resident_bytes
from deepinfer.model.network import Network
from deepinfer.model.operations import Operations
from deepinfer.model.state import State
from deepinfer.ops.registry import Bound
from deepinfer.runner.dspark import DraftStages
from deepinfer.runner.rows import RowLimits
from deepinfer.runner.runner import TorchRunner
from deepinfer.step import Admit, DraftCap, PageAppend, RowSampling, StepPlan

Row = dict[str, Any]
CALM_STEPS = 200  # run with every hidden wait an error
_CROWD = 64  # rows of every table, so that pools are the same whatever the number that decodes
_CHECKED_STEPS = 5
_STEPS_AHEAD = 400  # tokens that a row may generate
_PROBE = 5  # the row that is also run alone


@dataclass(frozen=True)
class Bed:
    """What is measured: a network, tokens that every row knows already, and drafts a row."""

    network: Network
    device: Device
    length: int
    drafts: int = 0


class Driver:
    """Rows of one runner that only decode.

    Args:
        bed: network and context length.
        rows: table rows that decode, ascending.
        graphs: where steps are captured, or None.
        crowd: rows of the table, None = the same for every number of rows.

    Attributes:
        marks: four a step, around forward, sample and draft.
        part: which of these three is being enqueued.
        accepted, verified: drafts in the steps that `run` collected.
    """

    def __init__(
        self, bed: Bed, rows: Sequence[int], graphs: Graphs | None, crowd: int | None = None
    ):
        most = bed.length + _STEPS_AHEAD
        pages = -(-most // PAGE_TOKENS)
        crowd = crowd or _CROWD
        limits = RowLimits(rows=crowd + 1, tokens=most, pages=pages, drafts=bed.drafts)
        self.runner = TorchRunner(
            bed.network,
            limits,
            pages=crowd * pages + 1,
            proposer=DraftStages(bed.network, bed.drafts) if bed.drafts else None,
            graphs=graphs,
        )
        self.bed = bed
        fill(self.runner.state)
        self.marks: list[tuple[Event, ...]] = []
        self.part = "forward"
        self.accepted = self.verified = 0
        self._rows = tuple(rows)
        self._next = 0

    def step(self) -> int:
        """Enqueue one step; returns its number."""
        number, drafts = self._next, self.bed.drafts
        most = self.bed.length + _STEPS_AHEAD
        plan = StepPlan(
            number,
            draft_budget=len(self._rows) * drafts,
            graph_rows=len(self._rows),
            max_len_hi=min(self.bed.length + (number + 1) * (1 + drafts), most),
        )
        if number == 0:
            plan = replace(plan, **self._entry())
        self._next += 1
        marks = tuple(Event(self.bed.device.torch) for _ in range(4))
        marks[0].record()
        self.part = "forward"
        self.runner.forward(plan)
        marks[1].record()
        self.part = "sample"
        self.runner.sample(number)
        marks[2].record()
        self.part = "draft"
        self.runner.draft(number)
        marks[3].record()
        self.marks.append(marks)
        return number

    def parts(self, steps: int) -> list[float]:
        """Median device seconds of forward, sample and draft over the last, collected `steps`."""
        return [
            statistics.median(marks[i].seconds_until(marks[i + 1]) for marks in self.marks[-steps:])
            for i in range(3)
        ]

    def idle(self, steps: int) -> float:
        """Part of the device's time between the last `steps` in which nothing was enqueued."""
        last = self.marks[-steps:]
        gaps = sum(a[3].seconds_until(b[0]) for a, b in itertools.pairwise(last))
        return gaps / last[0][0].seconds_until(last[-1][3])

    def _entry(self) -> Mapping[str, Any]:
        most = self.bed.length + _STEPS_AHEAD
        pages = range(-(-most // PAGE_TOKENS))
        return {
            "admit": tuple(_admitted(row, self.bed) for row in self._rows),
            "pages": tuple(
                PageAppend(row, place, 1 + (row - 1) * len(pages) + place)
                for row in self._rows
                for place in pages
            ),
            "decode_add": self._rows,
            "draft_cap": tuple(DraftCap(row, self.bed.drafts) for row in self._rows),
        }

    def checked(self, steps: int) -> Iterator[tuple[Tensor, list[list[int]]]]:
        """Run steps one after another; yields logits and tokens of each."""
        for _ in range(steps):
            number = self.step()
            logits = self.runner.logits(number)
            # NaN differs from itself: comparing would call equal bits different.
            assert bool(logits.isfinite().all()), f"step {number}: logits that are not finite"
            yield logits, self.runner.collect(number).tokens.tolist()

    def run(self, steps: int) -> float:
        """Run steps, one of them ahead of its results; returns seconds a step."""
        self.bed.device.synchronize()
        started = time.perf_counter()
        before: int | None = None
        for _ in range(steps):
            number = self.step()
            if before is not None:
                self._collect(before)
            before = number
        if before is not None:
            self._collect(before)
        return (time.perf_counter() - started) / steps

    def _collect(self, number: int) -> None:
        result = self.runner.collect(number)
        self.accepted += int(result.accepted.sum())
        self.verified += int(result.verified.sum())


@cache
def made_up_ids(row: int, tokens: int, vocabulary: int) -> tuple[int, ...]:
    """Token ids that follow from a row's number."""
    generator = torch.Generator().manual_seed(row)
    ids = torch.randint(10, vocabulary // 2, (tokens,), generator=generator)
    return tuple(ids.tolist())


def _admitted(row: int, bed: Bed) -> Admit:
    """A request whose ids follow from its row; every other one is drawn with noise."""
    return Admit(
        row=row,
        slot=row,
        ids=made_up_ids(row, bed.length, bed.network.arch.vocab_size),
        prompt_len=bed.length,
        cached=0,
        encoder_start=0,
        decoder_start=0,
        limit=bed.length + _STEPS_AHEAD,
        end_id=-1,
        stop_ids=(),
        seed=row,
        sample=0,
        sampling=RowSampling(temperature=float(row % 2)),
    )


def fill(state: State) -> None:
    """Random bytes without the codes of NaN, the same in every pool of a size."""
    for pool in (state.pages, state.slots):
        generator = torch.Generator(pool.device).manual_seed(11)
        pool.random_(0, 256, generator=generator)
        pool.bitwise_and_(0x77)


def check_graphs(bed: Bed, rows: Sequence[int], graphs: Graphs) -> bool:
    """Whether captured steps have the bits of direct ones."""
    plain, captured = Driver(bed, rows, None), Driver(bed, rows, graphs)
    pairs = zip(plain.checked(_CHECKED_STEPS), captured.checked(_CHECKED_STEPS), strict=True)
    equal = [torch.equal(one, other) and tokens == also for (one, tokens), (other, also) in pairs]
    assert captured.runner.captures.replays > 0, "nothing was captured"
    return all(equal)


def check_company(bed: Bed, graphs: Graphs | None) -> bool:
    """Whether a row has the same logits alone and among 63 others."""
    crowd = Driver(bed, range(1, _CROWD + 1), graphs).checked(_CHECKED_STEPS)
    alone = Driver(bed, (_PROBE,), graphs).checked(_CHECKED_STEPS)
    return all(
        torch.equal(many[_PROBE - 1], one[0])
        for (many, _), (one, _) in zip(crowd, alone, strict=True)
    )


def bench_rows(bed: Bed, count: int, graphs: Callable[[], Graphs]) -> Row:
    """Time a step of `count` rows, directly and captured."""
    rows = range(1, count + 1)
    equal = check_graphs(bed, rows, graphs())
    plain = Driver(bed, rows, None)
    plain.run(2)
    eager = [plain.run(3) for _ in range(3)]
    captured = Driver(bed, rows, graphs())
    captured.run(3)
    with no_sync(bed.device.torch):
        captured.run(CALM_STEPS)
    replayed = [captured.run(20) for _ in range(5)]
    captured.run(50)
    forward, sample, draft = captured.parts(40)
    report = captured.runner.captures
    middle = sorted(replayed)[2]
    return {
        "name": f"step rows {count}",
        "length": bed.length,
        "drafts": bed.drafts,
        "eager_ms": sorted(eager)[1] * 1e3,
        "graph_ms": middle * 1e3,
        "graph_spread": (max(replayed) - min(replayed)) / middle,
        "graph_forward_ms": forward * 1e3,
        "graph_sample_ms": sample * 1e3,
        "graph_draft_ms": draft * 1e3,
        "graph_idle": captured.idle(40),
        "ratio": sorted(eager)[1] / middle,
        "graphs_equal_eager": equal,
        "steps_without_wait": CALM_STEPS,
        "graphs": report.graphs,
        "capture_seconds": report.seconds,
        "held_bytes": bed.device.memory_held(),
    }


def bench_operations(bed: Bed, count: int) -> list[Row]:
    """Time of each operation's calls in one step of `count` rows, replayed in graphs of their own.

    Calls of one operation follow each other there, so that launches overlap as in a step.
    """
    calls: dict[str, list[Callable[[], object]]] = {}
    network = recorded(bed.network, lambda name, call: calls.setdefault(name, []).append(call))
    driver = Driver(replace(bed, network=network), range(1, count + 1), None)
    driver.run(1)
    calls.clear()
    driver.run(1)
    found: list[Row] = []
    for name, every in calls.items():
        each, spread = graph_us(every, len(every))
        implementation = getattr(bed.network.ops, name).implementation.name
        found.append(
            {
                "name": f"operation {name} rows {count}",
                "implementation": implementation,
                "calls": len(every),
                "ms": each * len(every) * 1e-3,
                "spread": spread,
            }
        )
    together = {"name": f"operations together rows {count}", "ms": sum(r["ms"] for r in found)}
    return [*sorted(found, key=lambda row: -row["ms"]), together]


def recorded(network: Network, note: Callable[[str, Callable[[], object]], None]) -> Network:
    """The network with operations that note their calls."""
    other = copy.copy(network)
    other.ops = recording(network.ops, note)
    other.block = Block(network.arch, other.ops, network.numerics)
    return other


def recording(ops: Operations, note: Callable[[str, Callable[[], object]], None]) -> Operations:
    """The operations, each call of which is first noted: name, and what repeats it."""

    def noted(bound: Bound) -> Bound:
        def run(*args: Any, **kwargs: Any) -> Any:
            call = partial(bound.implementation.run, *args, **kwargs)
            note(bound.op, call)
            return call()

        return replace(bound, implementation=replace(bound.implementation, run=run))

    return Operations(**{item.name: noted(getattr(ops, item.name)) for item in fields(ops)})


def run(
    name: str,
    rows: Sequence[int],
    *,
    length: int = 1024,
    drafts: int = 0,
    ops: Mapping[str, str] | None = None,
    json: bool = False,
) -> list[Row]:
    """Build a slice on the first GPU, measure and check it, print each record as it comes.

    Args:
        name: a slice, see `slices.RANKS`.
        rows: numbers of decoding rows, at most 64.
        length: tokens that every row knows.
        drafts: drafts a row; with them the slice has its draft stages.
        ops: operation name -> implementation name.
        json: print one JSON object a record instead of a table.

    Raises:
        ConfigError: there is no such slice, or no GPU.
    """
    device = find_device("cuda")
    started = time.perf_counter()
    network = slice_network(slice_arch(name, draft=drafts > 0), device, ops or {})
    device.synchronize()
    bed = Bed(network, device, length, drafts)
    common = {"slice": name, **environment(device.torch)}
    found: list[Row] = []

    def publish(row: Row) -> None:
        found.append(row | common)
        print(json_text.dumps(found[-1]) if json else _line(row), flush=True)

    with torch.inference_mode():
        publish(_start(network, device, time.perf_counter() - started))
        if obstacles := network.graph_obstacles():
            publish({"name": "no graphs", "why": obstacles})
            return found
        for count in rows:
            publish(bench_rows(bed, count, device.graphs))
        publish({"name": "row alone and among 63", "equal": check_company(bed, device.graphs())})
        for count in rows:
            for row in bench_operations(bed, count):
                publish(row)
    return found


def _start(network: Network, device: Device, seconds: float) -> Row:
    return {
        "name": "start",
        "load_and_pack_seconds": seconds,
        "weight_bytes": resident_bytes(network.weights),
        "held_bytes": device.memory_held(),
        "free_bytes": device.memory_free(),
        "operations": {
            item.name: getattr(network.ops, item.name).implementation.name
            for item in fields(network.ops)
        },
    }


def _line(row: Row) -> str:
    values = (f"{key} {_short(value)}" for key, value in row.items() if key != "name")
    return f"{row['name']:34} {', '.join(values)}"


def _short(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
