"""Compiles constraints beside the engine: in worker processes, each once, never blocking others.

A worker tries a constraint within limits of time, memory and stack; only what it accepts is built
here. It does not know requests.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing import Pipe
from queue import LifoQueue

from deepinfer.errors import RequestError
from deepinfer.grammar.constraint import Constraint
from deepinfer.grammar.front import check_size
from deepinfer.grammar.limits import Limits
from deepinfer.grammar.matcher import Grammar
from deepinfer.grammar.vocabulary import Vocabulary

# Not the `spawn` of multiprocessing, which would run the main script of the user once more.
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); "
    "from deepinfer.grammar.worker import main; main()"
)
_START_SECONDS = 60.0
_GRACE_SECONDS = 2.0


class Compiler:
    """A pool of workers and a cache of what they found.

    Refusals are remembered like grammars; what went wrong with a worker is not.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        workers: int = 1,
        limits: Limits | None = None,
        cached: int = 256,
    ):
        """Start the workers; they are ready after they have read the vocabulary.

        Args:
            vocabulary: the tokens of all grammars.
            workers: processes, >= 1; as many constraints are compiled at once.
            limits: guards of each.
            cached: grammars and refusals kept, >= 0; those unused for the longest time go first.
        """
        self.vocabulary = vocabulary
        self.limits = limits or Limits()
        self._cached = cached
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Future[Grammar]] = OrderedDict()
        self._idle: LifoQueue[_Worker] = LifoQueue()
        self._workers = [_Worker(vocabulary, self.limits) for _ in range(workers)]
        for worker in self._workers:
            self._idle.put(worker)
        self._threads = ThreadPoolExecutor(workers, "grammar")
        self._closed = False
        for _ in range(workers):
            self._threads.submit(self._warm)

    def submit(self, constraint: Constraint) -> Future[Grammar]:
        """Compile, or find what was compiled.

        Returns:
            The grammar, later; or a `RequestError` with the reason why there is none.
        """
        key = constraint.key
        with self._lock:
            assert not self._closed, "the compiler is closed"
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                return found
            future = self._threads.submit(self._compile, constraint)
            self._known[key] = future
            while len(self._known) > max(self._cached, 1):
                self._known.popitem(last=False)
        future.add_done_callback(lambda done: self._forget_failure(key, done))
        return future

    def check(self, constraint: Constraint, text: str) -> Future[str]:
        """Judge a finished text by other means (`finished.py`).

        Returns:
            What is wrong with it, later; empty if nothing is.
        """
        return self._threads.submit(self._check, constraint, text)

    def close(self) -> None:
        """End the workers. What is being compiled comes to nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.close()

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _compile(self, constraint: Constraint) -> Grammar:
        check_size(constraint, self.limits)
        answer = self._ask(["compile", asdict(constraint)])
        if "refused" in answer:
            raise RequestError(answer["refused"])
        return Grammar(constraint, self.vocabulary, answer["translated"], limits=self.limits)

    def _check(self, constraint: Constraint, text: str) -> str:
        try:
            return self._ask(["check", asdict(constraint), text])["checked"]
        except WorkerLost as error:
            return f"the text could not be checked: {error}"

    def _ask(self, job: list[object]) -> dict[str, str]:
        worker = self._idle.get()
        try:
            if worker.has_ended():  # while it had nothing to do: no fault of this job
                worker = self._replaced(worker)
            return worker.ask(job)
        except WorkerLost:
            worker = self._replaced(worker)
            raise
        finally:
            self._idle.put(worker)

    def _replaced(self, worker: _Worker) -> _Worker:
        """A new worker instead of one that is of no more use."""
        with self._lock:
            if self._closed:
                return worker
            worker.close()
            new = _Worker(self.vocabulary, self.limits)
            self._workers[self._workers.index(worker)] = new
            self._threads.submit(self._warm)
            return new

    def _warm(self) -> None:
        """Let a new worker read the vocabulary before anybody waits for it."""
        worker = self._idle.get()
        try:
            worker.prepare()
        finally:
            self._idle.put(worker)

    def _forget_failure(self, key: str, done: Future[Grammar]) -> None:
        if done.cancelled() or isinstance(done.exception(), WorkerLost):
            with self._lock:
                if self._known.get(key) is done:
                    del self._known[key]


class WorkerLost(RequestError):
    """A worker ended, or did not answer in time; the constraint it worked on is not compiled."""


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits):
        self._vocabulary = vocabulary
        self._limits = limits
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # the last words of a crash are of no use to anybody
        )
        theirs.close()
        self._ready = False

    def ask(self, job: list[object]) -> dict[str, str]:
        """The answer to one job.

        Raises:
            WorkerLost: there is none.
        """
        self.prepare()
        return self._exchange(job, self._limits.compile_seconds + _GRACE_SECONDS)

    def prepare(self) -> None:
        """Let the process read the vocabulary, if it has not.

        Raises:
            WorkerLost: it ended.
        """
        if self._ready:
            return
        first = {
            "limits": asdict(self._limits),
            "tokenizer_json": self._vocabulary.tokenizer_json,
            "size": self._vocabulary.size,
            "end_ids": self._vocabulary.end_ids,
        }
        self._exchange(first, _START_SECONDS)
        self._ready = True

    def has_ended(self) -> bool:
        """Whether there is no process any more."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """End the process, from any thread; who waits for its answer learns that there is none."""
        self._process.kill()

    def close(self) -> None:
        """End the process and the pipe to it."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()

    def _exchange(self, message: object, seconds: float) -> dict[str, str]:
        try:
            self._pipe.send_bytes(json.dumps(message).encode())
            if self._pipe.poll(seconds):
                return json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerLost(self._last_words()) from None
        raise WorkerLost(f"the constraint was not compiled within {seconds:g} s; simplify it")

    def _last_words(self) -> str:
        code = self._process.wait()
        if code == -signal.SIGALRM:
            return (
                f"the constraint was not compiled within {self._limits.compile_seconds:g} s; "
                "simplify it"
            )
        how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return f"the process that compiled the constraint ended with {how}; simplify it"
