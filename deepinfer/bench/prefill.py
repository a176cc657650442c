"""Steps that compute prompts: time, tokens a second, and the floor of each.

A step holds several prompts, one, or a part of one. What is cached is made up, so the hit rate is
assumed; only the last rows of a prompt run the decoder layers. Knows nothing of schedulers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from deepinfer.arch import PAGE_TOKENS
from deepinfer.bench.decode import operation_times
from deepinfer.bench.floors import Prefill as Work
from deepinfer.bench.step import fill, made_up_ids, recorded
from deepinfer.bench.subject import Record, Subject
from deepinfer.errors import ConfigError
from deepinfer.runner.rows import RowLimits
from deepinfer.runner.runner import TorchRunner
from deepinfer.step import Admit, PageAppend, Prefill, RowSampling, StepPlan

_ROOM = 8  # tokens that a row could generate


@dataclass(frozen=True)
class Prompts:
    """A sweep.

    Attributes:
        requests: numbers of prompts that a step computes; not looked at if there are budgets.
        length: tokens of a prompt.
        uncached: how many of them are computed, the last ones.
        repeats: timed at each point, behind one that is not.
        operations: also time each operation's calls, where a step computes whole prompts.
        budgets: tokens of a step. It holds as many prompts as fit, or an equal part of one.
    """

    requests: Sequence[int] = (1, 2, 4)
    length: int = 32768
    uncached: int = 4096
    repeats: int = 7
    operations: bool = False
    budgets: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not self.requests or min(self.requests) < 1:
            raise ConfigError(f"requests {list(self.requests)}: use numbers >= 1")
        if self.repeats < 1:
            raise ConfigError(f"repeats {self.repeats}: use a number >= 1")
        cached = self.length - self.uncached
        if self.uncached < 1 or cached < 0 or cached % PAGE_TOKENS:
            raise ConfigError(
                f"length {self.length}, uncached {self.uncached}: tokens before those are cached, "
                f"in whole pages of {PAGE_TOKENS}"
            )
        for budget in self.budgets:
            least, most = sorted((budget, self.uncached))
            if least < 1 or most % least:
                raise ConfigError(
                    f"budget {budget}: use multiples of the {self.uncached} uncached tokens, or "
                    "numbers that divide them"
                )

    @property
    def cached(self) -> int:
        """Tokens of a prompt that are not computed."""
        return self.length - self.uncached

    def points(self) -> list[tuple[int, int]]:
        """Prompts that are computed together, and the steps that it takes, for every point."""
        if not self.budgets:
            return [(requests, 1) for requests in self.requests]
        return [(max(b // self.uncached, 1), max(self.uncached // b, 1)) for b in self.budgets]


class Driver:
    """Rows that compute the same prompts again and again; windows before them are made up.

    Args:
        subject: the network.
        prompts: lengths.
        requests: rows.
        steps: that the prompts are divided into.
    """

    def __init__(self, subject: Subject, prompts: Prompts, requests: int, steps: int = 1):
        arch = subject.network.arch
        self._most = prompts.length + _ROOM
        self._pages = -(-self._most // PAGE_TOKENS)
        limits = RowLimits(rows=requests + 1, tokens=self._most, pages=self._pages, drafts=0)
        self.runner = TorchRunner(subject.network, limits, pages=requests * self._pages + 1)
        fill(self.runner.state)
        self._rows = range(1, requests + 1)
        self._prompts = prompts
        self._vocabulary = arch.vocab_size
        self._decoder_start = max(prompts.cached, prompts.length - arch.decoder_keep)
        self._steps = steps
        self._next = 0

    def compute(self) -> float:
        """Compute all prompts once; returns the device's seconds."""
        numbers = [self._enqueue(part) for part in range(self._steps)]
        (begin, _), (_, end) = self.runner.marks(numbers[0]), self.runner.marks(numbers[-1])
        for number in numbers:
            self.runner.collect(number)
        assert end is not None, "results come behind sampling"
        return begin.seconds_until(end)

    def _enqueue(self, part: int) -> int:
        """Enqueue the step that computes one part of every prompt; returns its number."""
        number, size = self._next, self._prompts.uncached // self._steps
        self._next += 1
        plan = StepPlan(
            number,
            prefill=tuple(
                Prefill(
                    row,
                    self._prompts.cached + part * size,
                    size,
                    emits=part == self._steps - 1,
                )
                for row in self._rows
            ),
            max_len_hi=self._most,
        )
        self.runner.forward(replace(plan, **self._entry(again=number > 0)) if not part else plan)
        self.runner.sample(number)
        self.runner.draft(number)
        return number

    def _entry(self, *, again: bool) -> Mapping[str, Any]:
        """The same rows come in again."""
        return {
            "release": tuple(self._rows) if again else (),
            "admit": tuple(self._admit(row) for row in self._rows),
            "pages": tuple(
                PageAppend(row, place, 1 + (row - 1) * self._pages + place)
                for row in self._rows
                for place in range(self._pages)
            ),
        }

    def _admit(self, row: int) -> Admit:
        prompts = self._prompts
        return Admit(
            row=row,
            slot=row,
            ids=made_up_ids(row, prompts.length, self._vocabulary),
            prompt_len=prompts.length,
            cached=prompts.cached,
            encoder_start=prompts.cached,
            decoder_start=self._decoder_start,
            limit=self._most,
            end_id=-1,
            stop_ids=(),
            seed=row,
            sample=0,
            sampling=RowSampling(temperature=0.0),
        )


def prefill(subject: Subject, prompts: Prompts) -> Iterator[Record]:
    """Measure each number of requests, or each budget; yields a record each.

    Raises:
        ConfigError: prompts are longer than the model knows.
    """
    arch = subject.network.arch
    if prompts.length + _ROOM > arch.max_position_embeddings:
        most = arch.max_position_embeddings - _ROOM
        raise ConfigError(f"length {prompts.length}: use at most {most} with {subject.name}")
    for requests, steps in prompts.points():
        driver = Driver(subject, prompts, requests, steps)
        driver.compute()
        times = [driver.compute() for _ in range(prompts.repeats)]
        yield _point(subject, prompts, (requests, steps), times)
        if prompts.operations and steps == 1:
            for record in operations(subject, prompts, requests):
                yield record | _shape(prompts, requests)


def _shape(prompts: Prompts, requests: int) -> Record:
    return {"rows": requests, "length": prompts.length, "uncached": prompts.uncached}


def _point(
    subject: Subject, prompts: Prompts, shape: tuple[int, int], times: Sequence[float]
) -> Record:
    """Of so many requests in so many steps; the floor is that of all of them in one."""
    requests, steps = shape
    work = Work(prompts.uncached, prompts.cached, requests)
    floor, seconds = subject.floors.prefill(work), statistics.median(times)
    budget = requests * prompts.uncached // steps
    return {
        "name": f"prefill budget {budget}" if prompts.budgets else f"prefill requests {requests}",
        **_shape(prompts, requests),
        "budget": budget,
        "steps": steps,
        "experts": subject.network.arch.n_routed_experts,
        "hit_rate": round(prompts.cached / prompts.length, 4),
        "hit_rate_is": "assumed",
        "step_ms": seconds / steps * 1e3,
        "latency_ms": seconds * 1e3,
        "spread": (max(times) - min(times)) / seconds,
        "repeats": len(times),
        "gpu_new_tokens_s": requests * prompts.uncached / seconds,
        "gpu_prompt_tokens_s": requests * prompts.length / seconds,
        "floor_ms": floor.seconds * 1e3,
        "floor_bound": floor.bound,
        "of_floor": floor.seconds / seconds,
    }


def operations(subject: Subject, prompts: Prompts, requests: int) -> list[Record]:
    """Microseconds of each operation's calls in one step."""
    calls: dict[tuple[str, str], list[Callable[[], object]]] = {}

    def note(name: str, call: Callable[[], object]) -> None:
        calls.setdefault((name, "main"), []).append(call)

    network = recorded(subject.network, note)
    Driver(replace(subject, network=network), prompts, requests).compute()
    with torch.inference_mode():
        return operation_times(calls, subject.device, f"requests {requests}")
