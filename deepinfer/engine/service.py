"""A running engine: requests with text in, results with text out, step by step.

`LLM` and `AsyncEngine` drive it. Knows nothing of threads or event loops.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any

from deepinfer.engine.border import Border, Prompt
from deepinfer.engine.constrained import Bound, Demand, Grammars, bind, governed
from deepinfer.engine.core import EngineCore
from deepinfer.engine.detokenize import TokenBytes
from deepinfer.engine.outputs import (
    ENGINE_DIED,
    Entries,
    RequestState,
    death,
    died,
    logprob_entries,
    step_entries,
)
from deepinfer.errors import RequestError
from deepinfer.grammar import Constraint, Grammar
from deepinfer.request import Request, RequestOutput, SamplingParams
from deepinfer.scheduler import Progress
from deepinfer.step import StepResult

_ONE_READER = ("regex", "ebnf")  # kinds of constraints that nobody else can judge
_NAP = 0.01  # seconds to wait for a grammar when there is nothing else to do
_CHECK_SECONDS = 2.0  # a finished text waits so long for a second opinion


@dataclass
class _Owner:
    """Which caller's request a core request belongs to."""

    state: RequestState
    sample: int


@dataclass
class _Running:
    """A caller's request.

    Attributes:
        state: its answer so far.
        demand: what its output must satisfy, None = nothing.
        grammar: the same, compiled or being compiled.
        waiting: core requests that wait for the grammar.
        live: names of core requests that go on.
        checks: second opinions on finished texts, by completion, with the text.
        until: when they are waited for no more.
    """

    state: RequestState
    demand: Bound | None = None
    grammar: Future[Grammar] | None = None
    waiting: list[Request] = field(default_factory=list[Request])
    live: set[str] = field(default_factory=set[str])
    checks: dict[int, tuple[str, Future[str]]] = field(
        default_factory=dict[int, tuple[str, Future[str]]]
    )
    until: float = 0.0


class Service:
    """Border, core and answers in one place.

    Args:
        border: checks what comes in.
        core: computes.
        seeds: gives a 64-bit seed to a request without one.
    """

    def __init__(
        self,
        border: Border,
        core: EngineCore,
        seeds: Callable[[], int] = lambda: secrets.randbits(64),
    ):
        self.border = border
        self.core = core
        self._seeds = seeds
        self._running: dict[str, _Running] = {}
        self._owners: dict[str, _Owner] = {}
        self._compiling: dict[str, _Running] = {}
        self._checking: dict[str, _Running] = {}
        self._ended: list[RequestOutput] = []  # news that no step brings
        self._grammars: Grammars | None = None
        self._tokens = None if border.tokenizer is None else TokenBytes(border.tokenizer)

    @property
    def idle(self) -> bool:
        """No request is running and no step is uncollected."""
        return not (self._running or self._ended) and self.core.idle

    @property
    def num_requests(self) -> int:
        """Requests that are not finished."""
        return len(self._running)

    def add(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        demand: Demand | None = None,
    ) -> Future[Grammar] | None:
        """Take a request in.

        Args:
            request_id: unique among unfinished requests.
            prompt: as in `Border.parse`.
            params: sampling values.
            priority: smaller goes first.
            demand: what the output must satisfy, besides what `params` say.

        Returns:
            None: it will be computed. Else its grammar, which is being compiled; the exception of
            it is why the request is not served, as its last result will say.

        Raises:
            RequestError: it cannot be served; nothing of it stays behind.
        """
        if request_id in self._running:
            raise RequestError(
                f"request {request_id!r} is being served already; choose another name"
            )
        parsed = self.border.parse(prompt)
        bound = bind(demand, params, parsed.ids, self.border.tokenizer)
        seed = self._seeds() if params.seed is None else params.seed
        requests = self.border.requests(
            request_id,
            parsed.ids,
            params,
            seed=seed,
            priority=priority,
            arrival=self.core.clock(),
            cache_salt=parsed.salt,
            constrained=bound is not None,
        )
        state = RequestState(request_id, parsed.text, parsed.ids, params, seed, self._tokens)
        running = _Running(state, bound, waiting=requests)
        if bound is None:
            self._enter(running)
        else:
            running.grammar = self._compile(bound.constraint)
            if running.grammar.done():
                _grammar(running)
                self._enter(running)
        self._running[request_id] = running
        if running.waiting:
            self._compiling[request_id] = running
            return running.grammar
        return None

    def _compile(self, constraint: Constraint) -> Future[Grammar]:
        if self._grammars is None:
            assert self.border.tokenizer is not None, "checked with the demand"
            self._grammars = Grammars(self.border.arch, self.border.tokenizer)
        return self._grammars.compile(constraint)

    def _enter(self, running: _Running) -> None:
        """Hand core requests on, those of a demand with their grammar."""
        requests, running.waiting = running.waiting, []
        for sample, request in enumerate(requests):
            try:
                if running.demand is None:
                    self.core.add(request)
                else:
                    grammar = _grammar(running)
                    matcher = grammar.matcher(running.demand.start)
                    self.core.add(request, matcher, grammar.vocabulary.words)
            except RequestError:
                for name in running.live:  # take back what went in before
                    del self._owners[name]
                    self.core.scheduler.abort(name)
                raise
            running.live.add(request.request_id)
            self._owners[request.request_id] = _Owner(running.state, sample)

    def abort(self, request_id: str) -> bool:
        """End a request; its last result comes with the next step. False if there is none."""
        running = self._running.get(request_id)
        if running is None:
            return False
        if self._compiling.pop(request_id, None) is not None:
            for sample, request in enumerate(running.waiting):
                gone = Progress(request.request_id, finish_reason="abort")
                running.state.push(sample, gone, [])
            del self._running[request_id]
            self._ended.append(running.state.output())
        for name in running.live:
            self.core.scheduler.abort(name)
        return True

    def step(self, *, unfinished: bool = True) -> Iterator[RequestOutput]:
        """Compute one step; yields every request that it changed, as it stands then.

        Args:
            unfinished: also those that go on, whose answers are put together anew each time.
        """
        self._take_grammars()
        ended, self._ended = self._ended, []
        yield from ended
        if self.core.idle and not ended:
            self._nap()
        news = self.core.step()
        changed: dict[str, _Running] = {}
        if news.result is not None:
            self._prompt_logprobs(news.result)
        for item in news.progress:
            owner = self._owners.get(item.request_id)
            if owner is None:  # ended by a stop string or taken back
                continue
            entries: list[Entries] = []
            if news.result is not None and owner.state.params.logprobs is not None:
                entries = step_entries(
                    news.result, item.place, item.token_ids, self.border.tokenizer
                )
            running = self._running[owner.state.request_id]
            if owner.state.push(owner.sample, item, entries):
                self.core.scheduler.finish(item.request_id, "stop")
                self._forget(running, item.request_id)
            elif item.finish_reason is not None:
                self._forget(running, item.request_id)
            changed[owner.state.request_id] = running
        for request_id, running in changed.items():
            if not running.live:
                self._check(request_id, running)
            elif unfinished:
                yield running.state.output()
        yield from self._finished()

    def _take_grammars(self) -> None:
        """Let requests in whose grammar is there; refuse those which have none."""
        for request_id, running in list(self._compiling.items()):
            assert running.grammar is not None
            if not running.grammar.done():
                continue
            del self._compiling[request_id]
            try:
                self._enter(running)
            except RequestError as error:
                del self._running[request_id]
                state = running.state
                self._ended.append(
                    RequestOutput(request_id, state.prompt, state.prompt_ids, (), error=str(error))
                )

    def _nap(self) -> None:
        """Wait a moment for what other processes do, if nothing else is to be done."""
        waited: list[Future[Any]] = [
            running.grammar for running in self._compiling.values() if running.grammar is not None
        ]
        for running in self._checking.values():
            waited += [check for _, check in running.checks.values()]
        if waited:
            wait(waited, _NAP, FIRST_COMPLETED)

    def _check(self, request_id: str, running: _Running) -> None:
        """Ask for a second opinion on the finished texts of a demand."""
        self._checking[request_id] = running
        running.until = time.monotonic() + _CHECK_SECONDS
        if running.demand is None or running.grammar is None or self._grammars is None:
            return
        constraint, start = running.demand
        vocabulary = _grammar(running).vocabulary
        for index, ids, by_itself in running.state.ended():
            own = governed(ids, start, vocabulary)
            if own is None:
                continue
            assert self._tokens is not None, "checked with the demand"
            text = self._tokens.join(own, False).decode(errors="replace")
            running.state.judge(index, text, None)
            if by_itself and constraint.kind not in _ONE_READER:
                running.checks[index] = text, self._grammars.check(constraint, text)

    def _finished(self) -> Iterator[RequestOutput]:
        """Last results whose second opinions are there, or are waited for no more."""
        for request_id, running in list(self._checking.items()):
            checks = running.checks
            late = time.monotonic() > running.until
            if not late and not all(check.done() for _, check in checks.values()):
                continue
            for index, (text, check) in checks.items():
                running.state.judge(index, text, _opinion(check) or None)
            del self._checking[request_id], self._running[request_id]
            yield running.state.output()

    def last_words(self, error: BaseException) -> Iterator[RequestOutput]:
        """The last result of every request, after `error` ended a step; no other step may follow.

        What was generated before stays: it came from steps that ended well.
        """
        yield from self._ended
        for request_id, running in self._running.items():
            for index, (text, check) in running.checks.items():
                said = _opinion(check) if check.done() else f"not checked: {ENGINE_DIED}"
                running.state.judge(index, text, said or None)
            try:
                yield running.state.end(death(error))
            except Exception:  # noqa: BLE001 - what ended the engine may have hit this request
                yield died(request_id, running.state.prompt, error)
        self._running.clear()

    def close(self) -> None:
        """End threads and processes; nothing may follow."""
        self.core.close()
        if self._grammars is not None:
            self._grammars.close()

    def _forget(self, running: _Running, name: str) -> None:
        running.live.discard(name)
        del self._owners[name]

    def _prompt_logprobs(self, result: StepResult) -> None:
        """Hand log-probabilities of prompt tokens to their requests."""
        for item in result.prompt_logprobs:
            name = self.core.scheduler.request_at(item.row)
            owner = None if name is None else self._owners.get(name)
            if owner is None:
                continue
            ids = owner.state.prompt_ids[item.start : item.start + len(item.logprobs.chosen)]
            entries = [
                logprob_entries(item.logprobs, (i,), token, self.border.tokenizer)
                for i, token in enumerate(ids)
            ]
            owner.state.add_prompt_logprobs(owner.sample, item.start, entries)


def _grammar(running: _Running) -> Grammar:
    """The compiled grammar of a request.

    Raises:
        RequestError: there is none.
    """
    assert running.grammar is not None
    try:
        return running.grammar.result()
    except RequestError:
        raise
    except BaseException as error:  # a panic of the library is none of the usual kind
        raise RequestError(f"the constraint was not compiled: {error!r}") from error


def _opinion(check: Future[str]) -> str:
    """What a second reader says; empty if nothing is wrong."""
    if not check.done():
        return f"not checked: nobody was free to do it within {_CHECK_SECONDS:g} s"
    error = check.exception()
    return check.result() if error is None else f"not checked: {error}"
