"""Any OpenAI-compatible endpoint as a back-end: threads, deadlines, bounded retries.

Whatever a server does ends as a reply or as a reply's `error`. Knows nothing of scores.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

from deepinfer.errors import ConfigError
from deepinfer.eval.backend import Deliver
from deepinfer.eval.chat import chat_body, reply_of
from deepinfer.eval.draw import Draw
from deepinfer.eval.question import Ask, Fields, Reply

_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_LONGEST_WAIT = 60.0  # seconds between two attempts, whatever the server asks for
_CONNECT = 30.0  # seconds for a connection
_LARGEST = 64 << 20  # bytes of a response
_SHOWN = 300  # characters of a server's message in an error


@dataclass(frozen=True)
class Endpoint:
    """A server and how it is spoken to.

    Attributes:
        url: base address, such as `http://host:8000/v1`; `/chat/completions` is added.
        model: name of the model there.
        key: bearer token, or None. Not shown.
        concurrency: requests at a time.
        timeout: seconds of one attempt, from connecting to the last byte.
        retries: further attempts after the first one failed for a reason that may pass.
        backoff: seconds before the first of them, doubled each time.
        extra: further keys of the request body; they win over those of the run.
    """

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    concurrency: int = 16
    timeout: float = 3600.0
    retries: int = 4
    backoff: float = 1.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise ConfigError(f"url {self.url!r}: write http://HOST:PORT/v1 or https://...")
        if parts.username or parts.query or parts.fragment:
            raise ConfigError("url: no user, query or fragment; a key goes into --api-key-file")
        if self.key is not None and not (self.key.isascii() and self.key.isprintable()):
            raise ConfigError("the API key holds characters that no header can carry")
        for name, least in (("concurrency", 1), ("retries", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} {getattr(self, name)}: use {least} or more")
        for name in ("timeout", "backoff"):
            if not 0 < getattr(self, name) < 1e6:
                raise ConfigError(f"{name} {getattr(self, name)}: use a number of seconds > 0")


class _Failure(Exception):
    """One attempt failed. `again`: another may not; `wait`: seconds the server asks to wait."""

    def __init__(self, message: str, *, again: bool, wait: float | None = None):
        super().__init__(message)
        self.again = again
        self.wait = wait


class EndpointBackend:
    """Answers questions over HTTP."""

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint

    def answer(self, asks: Sequence[Ask], deliver: Deliver) -> None:
        """Answer all questions, `concurrency` at a time.

        An interrupt stops the threads after the attempt that they are in; they do not keep the
        process alive.
        """
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(len(asks)):
            waiting.put(place)
        done: queue.SimpleQueue[tuple[int, Reply | BaseException]] = queue.SimpleQueue()
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                try:
                    place = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put((place, self._answer(asks[place], stop)))
                except BaseException as error:  # noqa: BLE001 - a bug; raised again below
                    done.put((place, error))

        for _ in range(min(self.endpoint.concurrency, len(asks))):
            threading.Thread(target=work, daemon=True).start()
        try:
            for _ in asks:
                place, reply = done.get()
                if isinstance(reply, BaseException):
                    raise reply
                deliver(place, reply)
        finally:
            stop.set()

    def _answer(self, ask: Ask, stop: threading.Event) -> Reply:
        """One question, with retries."""
        begin = time.monotonic()
        draw = Draw("backoff", ask.seed)
        body = json.dumps(self._body(ask)).encode()
        attempt = 0
        while True:
            attempt += 1
            try:
                reply = _reply(self._post(body))
            except _Failure as failure:
                left = self.endpoint.retries + 1 - attempt
                if not (failure.again and left > 0):
                    reply = Reply(error=str(failure))
                else:
                    wait = self.endpoint.backoff * 2 ** (attempt - 1) * draw.number(50, 100) / 100
                    wait = wait if failure.wait is None else failure.wait
                    if not stop.wait(min(wait, _LONGEST_WAIT)):
                        continue
                    reply = Reply(error=str(failure))
            return replace(reply, seconds=time.monotonic() - begin, attempts=attempt)

    def _body(self, ask: Ask) -> dict[str, Any]:
        body = chat_body(ask.question, ask.settings, self.endpoint.model)
        return body | {"seed": ask.seed} | dict(self.endpoint.extra)

    def _post(self, body: bytes) -> Fields:
        """One attempt; the JSON object of a successful response."""
        parts = urlsplit(self.endpoint.url)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.endpoint.key is not None:
            headers["Authorization"] = f"Bearer {self.endpoint.key}"
        path = parts.path.rstrip("/") + "/chat/completions"
        connection = _connection(parts, min(_CONNECT, self.endpoint.timeout))
        late = _Deadline(self.endpoint.timeout)
        try:
            connection.connect()
            late.watch(connection.sock)
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            data = response.read(_LARGEST + 1)
            if response.length and len(data) <= _LARGEST:  # bytes that were promised
                raise http.client.IncompleteRead(b"", response.length)
        except (OSError, http.client.HTTPException) as error:
            why = "timed out" if late.over else str(error) or type(error).__name__
            raise _Failure(f"no response: {why}", again=True) from error
        finally:
            late.cancel()
            connection.close()
        if late.over:  # a response without a length ends wherever the connection does
            raise _Failure("no response: timed out", again=True)
        return _checked(response, data)


def _connection(parts: SplitResult, timeout: float) -> http.client.HTTPConnection:
    """A connection that is not made yet; `timeout` is for connecting."""
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, parts.port, timeout=timeout, context=context)
    return http.client.HTTPConnection(host, parts.port, timeout=timeout)


class _Deadline:
    """Shuts a socket down when its time is over, also if a byte comes now and then.

    A time-out of the socket itself would begin anew with every byte.

    Attributes:
        over: the time was over before `cancel`.
    """

    def __init__(self, seconds: float):
        self.over = False
        self._end = time.monotonic() + seconds
        self._timer: threading.Timer | None = None

    def watch(self, sock: socket.socket) -> None:
        """From now on the socket is shut down at the end."""
        sock.settimeout(None)
        self._timer = threading.Timer(max(self._end - time.monotonic(), 0), self._ring, [sock])
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        """Leave the socket alone."""
        if self._timer is not None:
            self._timer.cancel()

    def _ring(self, sock: socket.socket) -> None:
        self.over = True
        with contextlib.suppress(OSError):  # it may be closed by now
            socket.socket.shutdown(sock, socket.SHUT_RDWR)  # below TLS, so that a reader wakes


def _checked(response: http.client.HTTPResponse, data: bytes) -> Fields:
    if len(data) > _LARGEST:
        raise _Failure(f"the response is larger than {_LARGEST} bytes", again=False)
    status = response.status
    if status != 200:
        shown = " ".join(data[: 4 * _SHOWN].decode("utf-8", "replace").split())[:_SHOWN]
        again = status in _AGAIN and response.headers.get("x-should-retry") != "false"
        wait = _seconds(response.headers.get("retry-after"))
        raise _Failure(f"HTTP {status}: {shown or response.reason}", again=again, wait=wait)
    try:
        value: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Failure(f"the response is no JSON: {error}", again=True) from error
    if not isinstance(value, dict):
        raise _Failure("the response is no JSON object", again=True)
    return value


def _seconds(text: str | None) -> float | None:
    """`Retry-After` in seconds; None without one, or for a date."""
    try:
        value = float(text) if text is not None else -1.0
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def _reply(data: Fields) -> Reply:
    try:
        return reply_of(data)
    except ValueError as error:
        raise _Failure(f"the response is {error}", again=False) from error
