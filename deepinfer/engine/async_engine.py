"""`AsyncEngine`: a service on a thread of its own, for event loops.

Owns the thread and the queue in front of it. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, NamedTuple

from deepinfer.engine.border import Prompt
from deepinfer.engine.constrained import Demand
from deepinfer.engine.outputs import died
from deepinfer.engine.service import Service
from deepinfer.engine.watchdog import Watchdog
from deepinfer.errors import DeepinferError, RequestError
from deepinfer.grammar import Grammar
from deepinfer.request import RequestOutput, SamplingParams

_LOG = logging.getLogger(__name__)
_IDLE_SECONDS = 0.5  # how long an idle thread waits before it looks whether it should end


class Health(NamedTuple):
    """State of the engine; `error` says why it died, `stuck` which step takes too long."""

    state: Literal["running", "draining", "closed", "dead"]
    requests: int
    error: str | None = None
    stuck: str | None = None


@dataclass
class _Stream:
    """Where a request's results go; safe to call from the engine's thread."""

    loop: asyncio.AbstractEventLoop
    results: asyncio.Queue[RequestOutput]

    def put(self, output: RequestOutput) -> None:
        self.loop.call_soon_threadsafe(self.results.put_nowait, output)


class AsyncEngine:
    """Serves requests from any event loop of the process.

    Args:
        service: what computes; it must not be used by anyone else.
        max_queued: requests that may be unfinished at once; more are refused with status 429.
        step_timeout_s: seconds after which a step is named in the log and in `health`; it goes on.
            None = never. A service that has its own watchdog keeps it.
    """

    def __init__(
        self, service: Service, *, max_queued: int = 4096, step_timeout_s: float | None = 60.0
    ):
        if max_queued < 1:
            raise DeepinferError(f"max_queued {max_queued}: use at least 1")
        self._service = service
        self._max_queued = max_queued
        if service.core.watchdog is None and step_timeout_s is not None:
            service.core.watchdog = Watchdog(step_timeout_s)
        self._watchdog = service.core.watchdog
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()
        self._state: Literal["running", "draining", "closed", "dead"] = "running"
        self._error: BaseException | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._thread = threading.Thread(target=self._run, name="deepinfer-engine", daemon=True)
        self._thread.start()

    async def stream(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        demand: Demand | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Serve a request; yields its whole state after each change, the last one `finished`.

        Leaving the iterator early aborts the request.

        Args:
            request_id: unique among unfinished requests.
            prompt: as in `LLM.generate`.
            params: None means `SamplingParams()`.
            priority: smaller goes first.
            demand: what the output must satisfy, besides what `params` say.

        Raises:
            RequestError: it cannot be served: bad input (400), name in use (409), queue full (429),
                or the engine drains, is closed or dead (503).
        """
        stream = await self.add(request_id, prompt, params, priority=priority, demand=demand)
        finished = False
        try:
            while not finished:
                output = await stream.get()
                finished = output.finished
                yield output
        finally:
            if not finished:
                self.abort(request_id)

    async def add(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        demand: Demand | None = None,
    ) -> asyncio.Queue[RequestOutput]:
        """Queue a request; its results arrive in the returned queue.

        Structured output is compiled before this returns.

        Raises:
            RequestError: as in `stream`.
        """
        stream = _Stream(asyncio.get_running_loop(), asyncio.Queue())
        accepted: Future[None] = Future()

        def enter() -> None:
            if not accepted.set_running_or_notify_cancel():  # the caller has left
                self._forget(request_id)
                return
            try:
                with self._lock:
                    self._check_alive()
                wanted = params or SamplingParams()
                grammar = self._service.add(
                    request_id, prompt, wanted, priority=priority, demand=demand
                )
            except RequestError as error:
                self._forget(request_id)
                accepted.set_exception(error)
            except BaseException as error:
                accepted.set_exception(RequestError(f"the engine died: {error}", 503))
                raise
            else:
                _accept(grammar, accepted)

        with self._lock:  # the call is queued under it, so that a dying engine sees it
            self._check_open()
            if request_id in self._streams:
                raise RequestError(f"request {request_id!r} is being served; rename it", 409)
            if len(self._streams) >= self._max_queued:
                raise RequestError(f"{self._max_queued} requests are waiting; try later", 429)
            self._streams[request_id] = stream
            self._idle.clear()
            self._calls.put(enter)
        try:
            await asyncio.wrap_future(accepted)
        except asyncio.CancelledError:
            self.abort(request_id)
            raise
        return stream.results

    def abort(self, request_id: str) -> None:
        """End a request; its stream gets a last result. Nothing happens if it has ended."""
        self._calls.put(lambda: self._abort(request_id))

    def _abort(self, request_id: str) -> None:
        if self._state != "dead":
            self._service.abort(request_id)

    async def drain(self, timeout: float | None = None) -> bool:
        """Take no new requests and wait for those that run.

        Args:
            timeout: seconds, None = as long as it takes.

        Returns:
            Whether all have ended.
        """
        with self._lock:
            if self._state == "running":
                self._state = "draining"
        return await asyncio.to_thread(self._idle.wait, timeout)

    def health(self) -> Health:
        """Whether requests are taken, how many are unfinished, and what is wrong."""
        error = None if self._error is None else f"{type(self._error).__name__}: {self._error}"
        stuck = None if self._watchdog is None else self._watchdog.stuck()
        return Health(self._state, len(self._streams), error, stuck)

    def close(self) -> None:
        """Abort what runs and end the thread."""
        with self._lock:
            if self._state != "dead":
                self._state = "closed"
            names = list(self._streams)
        for name in names:
            self.abort(name)
        self._thread.join()

    def _check_alive(self) -> None:
        if self._state == "dead":
            raise RequestError(f"the engine died: {self._error}", 503)

    def _check_open(self) -> None:
        self._check_alive()
        if self._state != "running":
            raise RequestError(f"the engine is {self._state} and takes no requests", 503)

    def _run(self) -> None:
        """The engine's thread: calls of others first, then one step; sleep when idle."""
        try:
            while self._state != "closed" or self._streams:
                self._take_calls(wait=self._service.idle)
                for output in self._service.step():
                    self._deliver(output)
        except BaseException as error:  # noqa: BLE001 - a bug ends the engine, with every request answered
            self._die(error)
        finally:
            self._service.close()

    def _take_calls(self, *, wait: bool) -> None:
        try:
            if wait:
                self._calls.get(timeout=_IDLE_SECONDS)()
            while True:
                self._calls.get_nowait()()
        except queue.Empty:
            return

    def _deliver(self, output: RequestOutput) -> None:
        stream = self._streams.get(output.request_id)
        if output.finished:
            self._forget(output.request_id)
        if stream is not None:
            stream.put(output)

    def _forget(self, request_id: str) -> None:
        with self._lock:
            self._streams.pop(request_id, None)
            if not self._streams:
                self._idle.set()

    def _die(self, error: BaseException) -> None:
        """Answer every request with the error; new ones are refused from now on."""
        step = None if self._watchdog is None else self._watchdog.current()
        _LOG.error("the engine died; oldest step not collected: %s", step, exc_info=error)
        with self._lock:
            self._state, self._error = "dead", error
            streams, self._streams = self._streams, {}
            self._idle.set()
        last = {output.request_id: output for output in self._service.last_words(error)}
        for name, stream in streams.items():
            stream.put(last.get(name) or died(name, None, error))
        self._take_calls(wait=False)  # what was queued refuses itself now


def _accept(grammar: Future[Grammar] | None, accepted: Future[None]) -> None:
    """Say that a request was accepted, as soon as its grammar is there."""

    def compiled(grammar: Future[Grammar]) -> None:
        try:
            grammar.result()
        except RequestError as error:
            accepted.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - it belongs to who waits for the answer
            accepted.set_exception(RequestError(f"not compiled: {type(error).__name__}: {error}"))
        else:
            accepted.set_result(None)

    if grammar is None:
        accepted.set_result(None)
    else:
        grammar.add_done_callback(compiled)
