"""What an engine does before its first request: measures a step, captures graphs, times steps.

Knows nothing of requests.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import torch

from deepinfer.cache import pages_for
from deepinfer.device import Device
from deepinfer.engine.core import EngineCore
from deepinfer.engine.options import EngineOptions
from deepinfer.engine.profile import admitted, profile
from deepinfer.errors import ConfigError
from deepinfer.runner.runner import TorchRunner
from deepinfer.scheduler import Limits
from deepinfer.step import PageAppend, Prefill, StepPlan

_MEASURED = -1  # number of the step that is measured; those of real steps begin at 0


@dataclass(frozen=True)
class Warmth:
    """What the start found out.

    Attributes:
        workspace: bytes of temporary tensors that the largest step needs; None if not measured.
        step_tokens: prompt tokens of that step.
        graph_bytes: memory that captured graphs hold.
        lines: how long each part took, for people.
    """

    workspace: int | None
    step_tokens: int
    graph_bytes: int
    lines: str


def warm_up(core: EngineCore, device: Device, options: EngineOptions, *, measured: bool) -> Warmth:
    """Prepare an engine without requests.

    Args:
        core: fresh.
        device: of its runner.
        options: `cudagraph_capture_sizes` and `speculative_config` are used.
        measured: run a step of the largest size first; only where memory is the device's own.

    Raises:
        ConfigError: that step does not fit into the memory.
    """
    runner = core.runner
    assert isinstance(runner, TorchRunner)
    times, tokens, workspace = [time.monotonic()], 0, None
    if measured and device.memory_bytes is not None:
        tokens, workspace = measure(runner, core.scheduler.limits, device)
    times.append(time.monotonic())
    held = device.memory_held()
    _capture(core, runner, options)
    graph_bytes = device.memory_held() - held
    times.append(time.monotonic())
    timed = _time_steps(core, runner, options)
    times.append(time.monotonic())
    spent = [after - before for before, after in itertools.pairwise(times)]
    first = f"a step of {tokens:,} tokens {spent[0]:.2f} s, " if tokens else ""
    graphs = runner.captures.graphs
    lines = f"{first}capture of {graphs} graphs {spent[1]:.2f} s, times of {timed} steps "
    return Warmth(workspace, tokens, graph_bytes, lines + f"{spent[2]:.2f} s")


def measure(runner: TorchRunner, limits: Limits, device: Device) -> tuple[int, int]:
    """Run the prompts of a step as large as the limits allow, all rows through all layers.

    Args:
        runner: without rows; it has none afterwards.
        limits: its sizes.
        device: where it computes.

    Returns:
        the tokens of the step, and the bytes of temporary tensors that it needed at a time.

    Raises:
        ConfigError: the memory does not suffice.
    """
    plan = largest_step(limits)

    def run() -> None:
        runner.forward(plan)
        runner.sample(plan.number)
        runner.draft(plan.number)
        runner.collect(plan.number)

    tokens = sum(piece.length for piece in plan.prefill)
    try:
        workspace = device.workspace(run)
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"a step of {tokens:,} tokens does not fit into the memory beside weights and pages; "
            f"lower max_num_batched_tokens or gpu_memory_utilization ({error})"
        ) from error
    runner.clear()
    return tokens, workspace


def largest_step(limits: Limits) -> StepPlan:
    """A step with as many prompt tokens as the limits allow.

    Prompts are as long as they can be; each leaves room for one generated token.
    """
    left, page, rows = limits.max_num_batched_tokens, 0, list[tuple[int, int]]()
    pages: list[PageAppend] = []
    while left and len(rows) < limits.max_num_seqs:
        length = min(left, limits.max_model_len - 1)
        need = pages_for(length + 1, limits.page_tokens)
        if page + need > limits.num_pages:
            break
        row = len(rows) + 1
        pages += [PageAppend(row, place, page + 1 + place) for place in range(need)]
        rows.append((row, length))
        left, page = left - length, page + need
    return StepPlan(
        _MEASURED,
        admit=tuple(admitted(row, length, length + 1) for row, length in rows),
        pages=tuple(pages),
        prefill=tuple(Prefill(row, 0, length, True) for row, length in rows),
        max_len_hi=max(length + 1 for _, length in rows),
    )


def _capture(core: EngineCore, runner: TorchRunner, options: EngineOptions) -> None:
    """Capture the sizes that were asked for by number."""
    sizes, limits = options.cudagraph_capture_sizes, core.scheduler.limits
    if limits.graph_sizes and sizes is not None:
        adaptive = limits.drafting.adaptive
        runner.warm_up(sizes, range(limits.max_draft + 1) if adaptive else None)


def _time_steps(core: EngineCore, runner: TorchRunner, options: EngineOptions) -> int:
    """Time steps if budgets of drafts are chosen by time; returns the number of steps."""
    seconds = options.speculative().profile_seconds
    if not (seconds and core.scheduler.limits.drafting.adaptive):
        return 0
    return profile(core.scheduler, runner, seconds, core.clock)
