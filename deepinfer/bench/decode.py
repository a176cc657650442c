"""Decoding steps over numbers of rows: time, tokens a second, and the floor of each.

Contexts are made up (see `bench/step.py`), so what came from a prefix cache and what of drafts is
accepted are assumed unless a record says otherwise. Knows nothing of schedulers.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from deepinfer.bench.floors import Point
from deepinfer.bench.measure import graph_us
from deepinfer.bench.step import Bed, Driver, recorded
from deepinfer.bench.subject import Record, Subject
from deepinfer.device import Device
from deepinfer.errors import ConfigError

_WARM_UP = 3  # compiled, captured, replayed
_AHEAD = 400  # tokens that a row of `bench/step.py` may generate


@dataclass(frozen=True)
class Workload:
    """A sweep.

    Attributes:
        rows: numbers of requests that decode.
        length: tokens that each of them knows.
        drafts: verified a step and row.
        acceptance: assumed part of them that is accepted; None = as in the measured steps.
        uncached: tokens of a prompt that no cache had; only the assumed hit rate follows from it.
        steps: timed at each number of rows.
        operations: also time each operation's calls.
    """

    rows: Sequence[int]
    length: int = 32768
    drafts: int = 5
    acceptance: float | None = 0.75
    uncached: int = 4096
    steps: int = 60
    operations: bool = False

    def __post_init__(self) -> None:
        if not self.rows or min(self.rows) < 1:
            raise ConfigError(f"rows {list(self.rows)}: use numbers >= 1")
        most = _AHEAD // (1 + self.drafts) - _WARM_UP
        if not 2 <= self.steps <= most:
            raise ConfigError(f"steps {self.steps}: use 2 to {most} with {self.drafts} drafts")
        if self.acceptance is not None and not 0 <= self.acceptance <= 1:
            raise ConfigError(f"acceptance {self.acceptance}: use 0 to 1")
        if not 0 <= self.uncached <= self.length:
            raise ConfigError(f"uncached {self.uncached}: use 0 to the length, {self.length}")


DEFAULTS = Workload((1, 2, 4, 8, 16, 32, 64))
"""The usual workload: 32,768 tokens of which 4,096 are new, up to 64 requests, 5 drafts."""
PUBLISHED = Workload((1, 8, 16, 32, 64, 128, 256), length=131072, drafts=3)
"""That of the published decoding curve: 131,072 tokens, 3 drafts, 75 % acceptance assumed."""


def decode(subject: Subject, work: Workload) -> Iterator[Record]:
    """Measure each number of rows, the largest first; yields a record each.

    Raises:
        ConfigError: the model has fewer drafts, or contexts are longer than it knows.
    """
    arch = subject.network.arch
    if work.drafts > arch.max_draft:
        raise ConfigError(f"drafts {work.drafts}: {subject.name} has {arch.max_draft} at most")
    if work.length + _AHEAD > arch.max_position_embeddings:
        most = arch.max_position_embeddings - _AHEAD
        raise ConfigError(f"length {work.length}: use at most {most} with {subject.name}")
    bed = Bed(subject.network, subject.device, work.length, work.drafts)
    for rows in sorted(work.rows, reverse=True):
        record = _point(subject, work, rows) | _timed(bed, rows, work.steps)
        yield record | _rates(work, rows, record)
        if work.operations:
            for each in operations(bed, rows):
                yield each | _shape(subject, work, rows)


def _timed(bed: Bed, rows: int, steps: int) -> Record:
    """Seconds from the start of one step to that of the next, each step a repeat."""
    graphs = bed.device.graphs() if bed.device.has_graphs else None
    driver = Driver(bed, range(1, rows + 1), graphs, crowd=rows)
    driver.run(_WARM_UP)
    driver.accepted = driver.verified = 0
    driver.run(steps)
    bed.device.synchronize()
    marks = driver.marks[-steps:]
    times = [a[0].seconds_until(b[0]) for a, b in itertools.pairwise(marks)]
    half = len(times) // 2
    first, second = statistics.median(times[: half or 1]), statistics.median(times[half:])
    median = statistics.median(times)
    forward, sample, draft = driver.parts(steps)
    return {
        "step_ms": median * 1e3,
        "spread": abs(first - second) / median,
        "slowest_ms": max(times) * 1e3,
        "steps": steps,
        "forward_ms": forward * 1e3,
        "sample_ms": sample * 1e3,
        "draft_ms": draft * 1e3,
        "idle": driver.idle(steps),
        "captured": driver.runner.captures.graphs > 0,
        "accepted": driver.accepted / driver.verified if driver.verified else None,
    }


def _shape(subject: Subject, work: Workload, rows: int) -> Record:
    experts = subject.network.arch.n_routed_experts
    return {"rows": rows, "length": work.length, "drafts": work.drafts, "experts": experts}


def _point(subject: Subject, work: Workload, rows: int) -> Record:
    floor = subject.floors.decode(Point(rows, work.length, work.drafts))
    return {
        "name": f"decode rows {rows}",
        **_shape(subject, work, rows),
        "hit_rate": round(1 - work.uncached / work.length, 4),
        "hit_rate_is": "assumed",
        "floor_ms": floor.seconds * 1e3,
        "floor_bound": floor.bound,
        "floor_read_ms": floor.memory * 1e3,
        "floor_products_ms": floor.compute * 1e3,
    }


def _rates(work: Workload, rows: int, record: Record) -> Record:
    """Tokens a second. A step gives each row one token and the drafts that are accepted."""
    assumed = work.acceptance is not None
    acceptance = (work.acceptance if assumed else record["accepted"]) or 0.0
    tokens = 1 + work.drafts * acceptance
    user = tokens / record["step_ms"] * 1e3
    return {
        "acceptance": acceptance if work.drafts else None,
        "acceptance_is": "assumed" if assumed else "real, on made-up contexts",
        "tokens_a_step_and_user": tokens,
        "user_tokens_s": user,
        "gpu_tokens_s": user * rows,
        "of_floor": record["floor_ms"] / record["step_ms"],
    }


def operations(bed: Bed, rows: int) -> list[Record]:
    """Microseconds of each operation's calls in one step, those of drafting apart.

    On a GPU the calls of one operation are replayed in a graph of their own, one behind the other.
    """
    calls: dict[tuple[str, str], list[Callable[[], object]]] = {}

    def note(name: str, call: Callable[[], object]) -> None:
        part = "draft" if driver.part == "draft" else "main"
        calls.setdefault((name, part), []).append(call)

    network = recorded(bed.network, note)
    driver = Driver(replace(bed, network=network), range(1, rows + 1), None, crowd=rows)
    driver.run(1)
    calls.clear()
    driver.run(1)
    with torch.inference_mode():
        return operation_times(calls, bed.device, f"rows {rows}")


def operation_times(
    calls: Mapping[tuple[str, str], Sequence[Callable[[], object]]], device: Device, label: str
) -> list[Record]:
    """Time noted calls by operation and part, the longest first.

    Args:
        calls: (operation, part) -> what repeats each call.
        device: where they work.
        label: what the records are of.
    """
    found: list[Record] = []
    for (name, part), every in calls.items():
        each, spread = _each(every, device)
        found.append(
            {
                "name": f"operation {name} {part} {label}",
                "operation": name,
                "part": part,
                "calls": len(every),
                "us": each * len(every),
                "spread": spread,
            }
        )
    return sorted(found, key=lambda record: -record["us"])


def _each(calls: Sequence[Callable[[], object]], device: Device) -> tuple[float, float]:
    """Microseconds a call, and how far two timings were apart."""
    if device.has_graphs:
        return graph_us(calls, len(calls))
    times: list[float] = []
    for _ in range(2):
        start = time.perf_counter()
        for call in calls:
            call()
        times.append((time.perf_counter() - start) / len(calls) * 1e6)
    mean = sum(times) / 2
    return mean, abs(times[0] - times[1]) / mean
