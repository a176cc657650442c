"""How long a device waits for the host between steps, with one step ahead and without.

A closed loop of requests of mixed lengths: as one ends, the next is admitted, so that steps with
prompts and captured steps that only decode take turns. Both ways serve the same requests on the
same network. Knows nothing of which numbers are good.
"""

from __future__ import annotations

import json as json_text
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from deepinfer.arch import PAGE_TOKENS
from deepinfer.bench.measure import environment
from deepinfer.device import Device, Event, find_device
from deepinfer.engine.build import build_around
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.service import Service
from deepinfer.errors import DeepinferError
from deepinfer.model.network import Network
from deepinfer.request import SamplingParams
from deepinfer.runner.runner import TorchRunner
from deepinfer.step import StepMasks, StepPlan, StepResult

Record = dict[str, Any]
_CACHE_BYTES = 4 << 30
_WARM_UPS = 4  # most times that a load is served before it is measured
_FIRST, _LAST = 100, 2000  # ids of prompts


@dataclass(frozen=True)
class Load:
    """Requests of a closed loop: numbers of tokens are drawn evenly between two bounds.

    Attributes:
        requests: how many are served in all, for each row.
        prompt, output: bounds.
        seed: of the lengths and the ids.
    """

    requests: int = 3
    prompt: tuple[int, int] = (64, 512)
    output: tuple[int, int] = (16, 64)
    seed: int = 5

    def drawn(self, rows: int) -> list[tuple[list[int], int]]:
        """Prompt and output tokens of every request."""
        source = random.Random(self.seed)
        return [
            (
                [source.randrange(_FIRST, _LAST) for _ in range(source.randint(*self.prompt))],
                source.randint(*self.output),
            )
            for _ in range(rows * self.requests)
        ]


class Step(NamedTuple):
    """A collected step: marks before its first and behind its last work; it computed a prompt."""

    begin: Event
    end: Event
    prompt: bool


class Marked:
    """A runner that keeps the marks of its steps.

    Args:
        runner: which computes.
    """

    def __init__(self, runner: TorchRunner):
        self.steps: list[Step] = []
        self._runner = runner
        self._prompts: dict[int, bool] = {}

    def forward(self, plan: StepPlan) -> None:
        """See `Runner.forward`."""
        self._prompts[plan.number] = bool(plan.prefill)
        self._runner.forward(plan)

    def sample(self, number: int, masks: StepMasks | None = None) -> None:
        """See `Runner.sample`."""
        self._runner.sample(number, masks)

    def draft(self, number: int) -> None:
        """See `Runner.draft`."""
        self._runner.draft(number)

    def collect(self, number: int) -> StepResult:
        """See `Runner.collect`."""
        begin, end = self._runner.marks(number)
        assert end is not None, "collect comes after sample"
        self.steps.append(Step(begin, end, self._prompts.pop(number)))
        return self._runner.collect(number)


def serve(service: Service, load: Load, rows: int) -> float:
    """Serve a load with so many requests at a time; returns the seconds it took.

    Raises:
        DeepinferError: a request failed.
    """
    waiting, running = list(reversed(load.drawn(rows))), 0
    started = time.perf_counter()
    while waiting or running:
        while waiting and running < rows:
            prompt, tokens = waiting.pop()
            params = SamplingParams(
                max_tokens=tokens, ignore_eos=True, seed=len(waiting), detokenize=False
            )
            service.add(str(len(waiting)), {"prompt_token_ids": prompt}, params)
            running += 1
        for output in service.step():
            if output.error is not None:
                raise DeepinferError(f"a request failed: {output.error}")
            running -= output.finished
    while not service.idle:  # the step that was ahead of the last result
        list(service.step())
    return time.perf_counter() - started


def gaps(steps: Sequence[Step]) -> Record:
    """What the marks of consecutive steps say.

    Returns:
        `idle`, the part of the device's time between two steps; for steps that only decode
        ("decode") and for those with prompts ("prompt") their number, median milliseconds of one
        and of the gap behind it, and the part of `idle` that is behind them.
    """
    behind = [
        (one, one.end.seconds_until(other.begin))
        for one, other in zip(steps[:-1], steps[1:], strict=True)
    ]
    total = steps[0].begin.seconds_until(steps[-1].end)
    record: Record = {"steps": len(steps), "idle": sum(gap for _, gap in behind) / total}
    for name, prompt in (("decode", False), ("prompt", True)):
        own = [(step, gap) for step, gap in behind if step.prompt == prompt]
        record[f"{name}_steps"] = len(own)
        if own:
            lengths = [step.begin.seconds_until(step.end) for step, _ in own]
            record[f"{name}_ms"] = statistics.median(lengths) * 1e3
            record[f"{name}_gap_ms"] = statistics.median(gap for _, gap in own) * 1e3
            record[f"{name}_idle"] = sum(gap for _, gap in own) / total
    return record


def measure(network: Network, device: Device, rows: int, load: Load) -> Iterator[Record]:
    """Serve a load on an engine that knows all its steps, synchronously and one step ahead.

    Args:
        network: loaded weights.
        device: where they are.
        rows: requests at a time.
        load: what they ask for.

    Yields:
        the record of each way.
    """
    options = EngineOptions(
        device=str(network.device),
        max_num_seqs=rows,
        max_model_len=-(-(load.prompt[1] + load.output[1]) // PAGE_TOKENS) * PAGE_TOKENS,
        kv_cache_memory_bytes=_CACHE_BYTES,
        cudagraph_capture_sizes=(rows,),
        enable_prefix_caching=False,  # prompts of the second time would be cached
    )
    service = build_around(network, options, model=b"").service
    core, runner = service.core, service.core.runner
    assert isinstance(runner, TorchRunner)
    tokens = sum(output for _, output in load.drawn(rows))
    for ahead in (False, True):
        core.async_scheduling, core.runner = ahead, runner
        for _ in range(_WARM_UPS):  # steps are compiled, and captured when they come again
            known = runner.captures.graphs
            serve(service, load, rows)
            if runner.captures.graphs == known:
                break
        device.synchronize()
        marked = core.runner = Marked(runner)
        before, known = runner.captures.replays, runner.captures.graphs
        seconds = serve(service, load, rows)
        yield {
            "name": f"idle rows {rows} {'ahead' if ahead else 'synchronous'}",
            "rows": rows,
            **gaps(marked.steps),
            "tokens_per_second": tokens / seconds,
            "graphs": known,
            "captured_meanwhile": runner.captures.graphs - known,
            "replays": runner.captures.replays - before,
        }


def run(
    network: Network,
    name: str,
    rows: Sequence[int],
    load: Load | None = None,
    *,
    json: bool = False,
) -> list[Record]:
    """Measure each number of rows both ways, print and return the records.

    Args:
        network: loaded weights, of a slice or of the embedded model.
        name: of the model, for the records.
        rows: requests at a time.
        load: what they ask for; None = `Load()`.
        json: one line of JSON a record instead of a table.

    Returns:
        For each number of rows "idle rows N synchronous", "idle rows N ahead" and "idle rows N",
        which has `idle` of one step ahead and `ratio`, the synchronous figure over it.
    """
    device = find_device(str(network.device))
    common = {"model": name, **environment(device.torch)}
    records: list[Record] = []

    def publish(record: Record) -> None:
        records.append(record | common)
        print(json_text.dumps(records[-1]) if json else _line(record), flush=True)

    for count in rows:
        for record in measure(network, device, count, load or Load()):
            publish(record)
        before, after = (record["idle"] for record in records[-2:])
        ratio = before / after if after else float("inf")
        publish({"name": f"idle rows {count}", "idle": after, "ratio": ratio})
    return records


def _line(record: Record) -> str:
    values = (f"{key} {_short(value)}" for key, value in record.items() if key != "name")
    return f"{record['name']:28} {', '.join(values)}"


def _short(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
