"""What the machine is: the only place that speaks to `torch.cuda`.

Knows nothing of models; it turns a wish ("auto", "cpu", "cuda:0") into a device and static facts,
and moves small arrays to and from it without waiting.
"""

from __future__ import annotations

import contextlib
import gc
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from deepinfer.errors import ConfigError

T = TypeVar("T")
_MAPPED = 3  # cudaHostRegisterPortable | cudaHostRegisterMapped


class Event:
    """A point in the order of a device's work; `record` marks it on the current stream."""

    def __init__(self, device: torch.device):
        self._device = device
        self._event: Any = None
        if device.type == "cuda":
            self._event = torch.cuda.Event(enable_timing=True)
        self._seconds = 0.0

    def record(self) -> None:
        """Mark the place behind everything enqueued so far."""
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))
        self._seconds = time.perf_counter()

    def wait(self) -> None:
        """Hold the host up until the device has passed the mark."""
        if self._event is not None:
            self._event.synchronize()

    def seconds_until(self, later: Event) -> float:
        """Device time between two marks that it has passed (on a CPU: the host's time)."""
        if self._event is not None:
            return self._event.elapsed_time(later._event) * 1e-3
        return later._seconds - self._seconds


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Enqueue it again: the same operations on the same memory."""
        ...


class Graphs(Protocol):
    """Captures work; all captures share memory, so what one replay leaves in temporary tensors is
    lost when another graph is replayed. Tensors that `capture` returned stay."""

    def capture(self, run: Callable[[], T]) -> tuple[Graph, T]:
        """Capture what `run` enqueues; it is not executed.

        Args:
            run: must not wait for the device, nor read host values that change between replays.

        Returns:
            the graph, and what `run` returned: tensors that every replay fills anew.
        """
        ...


class CudaGraphs:
    """`Graphs` of a CUDA device."""

    def __init__(self, device: torch.device):
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def capture(self, run: Callable[[], T]) -> tuple[Graph, T]:
        """See `Graphs.capture`."""
        graph = torch.cuda.CUDAGraph()
        context = torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        # To begin a capture is to wait, once.
        with _sync_mode("default"), _no_collection(), context:
            outputs = run()
        return graph, outputs


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection: what it frees, such as pinned memory, may end a capture with an error.

    Nothing frees such things inside a capture but the collector, which may run at any time.
    """
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


class Branch:
    """A second line of work inside a captured graph, for what does not depend on the first one.

    Outside a capture work is done at once. Work is started only when the one before it has been
    joined, and joined before its inputs are given back: so memory needs no other care.
    """

    def __init__(self) -> None:
        self._stream: Any = None

    def start(self, device: torch.device, run: Callable[[], T]) -> Callable[[], T]:
        """Enqueue what `run` does beside what the caller enqueues next.

        Args:
            device: where it works.
            run: reads only what was enqueued before.

        Returns:
            to be called once: what is enqueued afterwards comes behind it, too; gives its result.
        """
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            done = run()
            return lambda: done
        trunk = torch.cuda.current_stream(device)
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        branch = self._stream
        branch.wait_stream(trunk)
        with torch.cuda.stream(branch):
            result = run()

        def join() -> T:
            trunk.wait_stream(branch)
            return result

        return join


@dataclass(frozen=True)
class Device:
    """A place to compute.

    Attributes:
        torch: the torch device.
        arch: static fact for choosing implementations: "cpu", "sm90", "sm100", ...
        name: for people.
        memory_bytes: memory of the device, None for the CPU.
    """

    torch: torch.device
    arch: str
    name: str
    memory_bytes: int | None

    def synchronize(self) -> None:
        """Wait for everything enqueued on the device."""
        if self.torch.type == "cuda":
            torch.cuda.synchronize(self.torch)

    def memory_free(self) -> int | None:
        """Bytes that can be taken now; None where the system does not tell."""
        if self.torch.type == "cuda":
            free, _total = torch.cuda.mem_get_info(self.torch)
            return free
        try:
            lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        except OSError:  # no Linux
            return None
        sizes = dict(line.split(":", 1) for line in lines)
        return int(sizes["MemAvailable"].split()[0]) * 1024

    def memory_held(self) -> int:
        """Bytes that torch has taken from the device, used now or not; 0 on a CPU."""
        return torch.cuda.memory_reserved(self.torch) if self.torch.type == "cuda" else 0

    def workspace(self, run: Callable[[], object]) -> int:
        """Run something; most bytes that its tensors took at a time, 0 on a CPU."""
        if self.torch.type != "cuda":
            run()
            return 0
        torch.cuda.reset_peak_memory_stats(self.torch)
        before = torch.cuda.memory_allocated(self.torch)
        run()
        return torch.cuda.max_memory_allocated(self.torch) - before

    @property
    def has_graphs(self) -> bool:
        """Whether work can be captured here."""
        return self.torch.type == "cuda"

    def graphs(self) -> Graphs:
        """A fresh store of captured graphs.

        Raises:
            ConfigError: there is no such thing here.
        """
        if not self.has_graphs:
            raise ConfigError(f"{self.name}: no graphs can be captured here")
        return CudaGraphs(self.torch)


def upload(values: NDArray[np.int64] | NDArray[np.int32], device: torch.device) -> Tensor:
    """Send an array to the device without holding the host up; the array may change at once.

    Returns:
        the same type and shape.
    """
    host = torch.from_numpy(values)
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.clone()


def fetch(values: Tensor) -> Tensor:
    """Start to bring a tensor back; read it only when an event recorded behind has passed."""
    if values.device.type != "cuda":
        return values.clone()
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return host.copy_(values, non_blocking=True)


def pinned(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Host memory that the device copies from and to without the host, not cleared."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=device.type == "cuda")


class _Shared:
    """Host memory in the form in which torch takes memory that is not its own."""

    def __init__(self, host: Tensor):
        self.host = host  # lives as long as whoever looks at it
        self.__cuda_array_interface__ = {
            "shape": tuple(host.shape),
            "typestr": "|u1",
            "data": (host.data_ptr(), False),
            "version": 3,
        }


def mapped(host: Tensor, device: torch.device) -> Tensor:
    """A host tensor as the device's own, without a copy: its kernels read over the bus.

    The memory is locked in place. That takes time, but none of the device's memory, and unlike
    torch's own pinned memory it is not rounded up to a power of two.

    Args:
        host: contiguous uint8, not empty.
        device: a CUDA device; on a CPU the tensor itself is returned.

    Raises:
        ConfigError: the system does not lock so much memory.
    """
    if device.type != "cuda":
        return host
    assert host.dtype == torch.uint8, "bytes"
    assert host.is_contiguous()
    with torch.cuda.device(device):
        here = torch.device("cuda", torch.cuda.current_device())
        runtime: Any = torch.cuda.cudart()
        found = int(runtime.cudaHostRegister(host.data_ptr(), host.numel(), _MAPPED))
        if found:
            raise ConfigError(
                f"{host.numel()} bytes of host memory cannot be locked for {here} (CUDA error "
                f"{found}); raise the limit of locked memory (ulimit -l), or keep the tensor "
                "elsewhere"
            )
        weakref.finalize(host, runtime.cudaHostUnregister, host.data_ptr()).atexit = False
        seen = torch.as_tensor(_Shared(host), device=here)
    assert seen.data_ptr() == host.data_ptr(), "the device sees the memory at another address"
    return seen


@contextlib.contextmanager
def no_sync(device: torch.device) -> Iterator[None]:
    """Within, an operation that makes the host wait for a CUDA device is an error.

    Waiting for an `Event` is not: that is how results are meant to be collected.
    """
    if device.type != "cuda":
        yield
        return
    with _sync_mode("error"):
        yield


@contextlib.contextmanager
def _sync_mode(mode: str) -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def find_device(wish: str = "auto") -> Device:
    """The device to use.

    Args:
        wish: "auto" (the first GPU if there is one, else the CPU), "cpu", "cuda" or "cuda:N".

    Raises:
        ConfigError: the wish is no device name, or there is no such GPU.
    """
    if wish == "auto":
        wish = "cuda:0" if torch.cuda.is_available() else "cpu"
    if wish == "cpu":
        return Device(torch.device("cpu"), "cpu", "CPU", None)
    kind, _, number = wish.partition(":")
    if kind != "cuda" or not (number.isdecimal() or wish == "cuda"):
        raise ConfigError(f"device {wish!r}: use 'auto', 'cpu', 'cuda' or 'cuda:N'")
    index = int(number or 0)
    count = torch.cuda.device_count()
    if index >= count:
        raise ConfigError(
            f"device {wish!r}: this machine shows {count} GPU(s) to torch {torch.__version__}; "
            "use 'cpu', or install a CUDA build of torch"
        )
    properties = torch.cuda.get_device_properties(index)
    arch = f"sm{properties.major}{properties.minor}"
    return Device(torch.device("cuda", index), arch, properties.name, properties.total_memory)
