"""A running engine: requests with text in, results with text out, step by step.

`LLM` and `AsyncEngine` drive it. Knows nothing of threads or event loops.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from deepinfer.engine.border import Border, Prompt
from deepinfer.engine.core import EngineCore
from deepinfer.engine.detokenize import TokenBytes
from deepinfer.engine.outputs import Entries, RequestState, logprob_entries, step_entries
from deepinfer.errors import RequestError
from deepinfer.request import RequestOutput, SamplingParams
from deepinfer.step import StepResult


@dataclass
class _Owner:
    """Which caller's request a core request belongs to."""

    state: RequestState
    sample: int


@dataclass
class _Running:
    """A caller's request and the names of its core requests that go on."""

    state: RequestState
    live: set[str] = field(default_factory=set[str])


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
        self._tokens = None if border.tokenizer is None else TokenBytes(border.tokenizer)

    @property
    def idle(self) -> bool:
        """No request is running and no step is uncollected."""
        return not self._running and self.core.idle

    @property
    def num_requests(self) -> int:
        """Requests that are not finished."""
        return len(self._running)

    def add(
        self, request_id: str, prompt: Prompt, params: SamplingParams, *, priority: int = 0
    ) -> None:
        """Take a request in.

        Raises:
            RequestError: it cannot be served; nothing of it stays behind.
        """
        if request_id in self._running:
            raise RequestError(
                f"request {request_id!r} is being served already; choose another name"
            )
        parsed = self.border.parse(prompt)
        seed = self._seeds() if params.seed is None else params.seed
        requests = self.border.requests(
            request_id,
            parsed.ids,
            params,
            seed=seed,
            priority=priority,
            arrival=self.core.clock(),
            cache_salt=parsed.salt,
        )
        state = RequestState(request_id, parsed.text, parsed.ids, params, seed, self._tokens)
        running = _Running(state)
        for sample, request in enumerate(requests):
            try:
                self.core.add(request)
            except RequestError:
                for name in running.live:  # take back what went in before
                    del self._owners[name]
                    self.core.scheduler.abort(name)
                raise
            running.live.add(request.request_id)
            self._owners[request.request_id] = _Owner(state, sample)
        self._running[request_id] = running

    def abort(self, request_id: str) -> bool:
        """End a request; its last result comes with the next step. False if there is none."""
        running = self._running.get(request_id)
        if running is None:
            return False
        for name in running.live:
            self.core.scheduler.abort(name)
        return True

    def step(self) -> Iterator[RequestOutput]:
        """Compute one step; yields every request that it changed, as it stands then."""
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
                del self._running[request_id]
            yield running.state.output()

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
