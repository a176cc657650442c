"""Time on the device: graph replays over rotating inputs, ceilings of the run, the record format.

Knows nothing of any operation.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from deepinfer.device import Event, find_device

_REPLAYS = 20
_WARM_UP = 3


@dataclass(frozen=True)
class Record:
    """One row of a result file.

    Attributes:
        name: what was measured.
        shape: sizes, in words.
        ours_us: microseconds a call, the mean of two medians.
        peer_us: the same for `peer`, measured in this run; None without one.
        peer: what the peer is.
        floor_us: time that the ceilings of this run allow.
        floor: which ceiling that is.
        spread: difference of two timings of ours, over their mean.
        note: what else a reader must know.
    """

    name: str
    shape: str
    ours_us: float
    floor_us: float
    floor: str
    spread: float
    peer_us: float | None = None
    peer: str = ""
    note: str = ""

    def row(self) -> dict[str, Any]:
        """The record with its two ratios: floor / ours and peer / ours."""
        of_floor = self.floor_us / self.ours_us
        speedup = None if self.peer_us is None else self.peer_us / self.ours_us
        return asdict(self) | {"of_floor": of_floor, "speedup": speedup}


@dataclass(frozen=True)
class Ceilings:
    """What this device reached in this run: bytes a second and FLOP a second."""

    read: float
    copy: float
    matmul: float


def _replays(run: Callable[[], object], count: int) -> list[float]:
    device = torch.device("cuda")
    start = [Event(device) for _ in range(count)]
    stop = [Event(device) for _ in range(count)]
    for _ in range(_WARM_UP):
        run()
    for first, last in zip(start, stop, strict=True):
        first.record()
        run()
        last.record()
    stop[-1].wait()
    return [a.seconds_until(b) * 1e6 for a, b in zip(start, stop, strict=True)]


def eager_us(run: Callable[[], object], count: int = _REPLAYS) -> float:
    """Median microseconds of single calls, launches from the host included."""
    return statistics.median(_replays(run, count))


def graph_us(calls: Sequence[Callable[[], object]], least: int = 8) -> tuple[float, float]:
    """Microseconds a call inside a replayed graph, and the spread of two such timings.

    Args:
        calls: the same call on different inputs, so that no input stays in the L2 cache.
        least: calls in the graph; `calls` are repeated in turn until there are so many.

    Returns:
        microseconds a call, the mean of two medians; their difference over that mean.
    """
    device = find_device("cuda")
    for call in calls:
        call()
    device.synchronize()
    rounds = -(-least // len(calls))

    def every() -> None:
        for _ in range(rounds):
            for call in calls:
                call()

    graph, _ = device.graphs().capture(every)
    size = rounds * len(calls)
    first, second = (statistics.median(_replays(graph.replay, _REPLAYS)) / size for _ in range(2))
    mean = 0.5 * (first + second)
    return mean, abs(first - second) / mean


def _memory_ceilings(device: torch.device) -> tuple[float, float]:
    data = torch.empty(2**31, dtype=torch.float32, device=device).normal_()
    half, other = data[: 2**30], data[2**30 :]
    read = data.nbytes / (eager_us(data.sum, 10) * 1e-6)
    copy = 2 * half.nbytes / (eager_us(partial(other.copy_, half), 10) * 1e-6)
    return read, copy


def ceilings(device: torch.device) -> Ceilings:
    """Read-only sum and copy of 8.6 GB, and an 8192^3 bf16 product, all on random data."""
    read, copy = _memory_ceilings(device)
    a, b = torch.randn((2, 8192, 8192), device=device).to(torch.bfloat16)
    rate = 2 * 8192**3 / (eager_us(lambda: a @ b, 20) * 1e-6)
    return Ceilings(read, copy, rate)


def environment(device: torch.device) -> dict[str, str]:
    """What the numbers depend on: device, its driver's CUDA, torch, Triton ("none" without)."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    return {
        "device": find_device(str(device)).name,
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "triton": triton,
    }
