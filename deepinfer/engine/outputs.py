"""Puts the answers of running requests together from the news of each step.

Owns text, log-probabilities and stop strings of requests that are not finished. Knows nothing of
plans or devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from deepinfer.engine.detokenize import TokenBytes
from deepinfer.engine.text import OutputText
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.request import (
    CompletionOutput,
    FinishReason,
    Logprob,
    RequestMetrics,
    RequestOutput,
    SamplingParams,
)
from deepinfer.scheduler import Progress
from deepinfer.step import StepResult, TopLogprobs

Entries = Mapping[int, Logprob]
ENGINE_DIED = "the engine died"
"""How the error begins that `death` gives; the input itself may be good."""


class Update(NamedTuple):
    """What a step changed for one caller's request.

    `output` is the whole state so far; `stopped` names core requests that a stop string ended and
    that the core must end too.
    """

    output: RequestOutput
    stopped: tuple[str, ...]


@dataclass
class _Completion:
    """One of the `n` of a request."""

    index: int
    seed: int
    text: OutputText | None
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[Entries] = field(default_factory=list[Entries])
    reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    structured: str | None = None
    violation: str | None = None

    def output(self, params: SamplingParams) -> CompletionOutput:
        wanted = params.logprobs is not None
        total = sum(
            entries[token].logprob
            for token, entries in zip(self.token_ids, self.logprobs, strict=wanted)
        )
        return CompletionOutput(
            index=self.index,
            text="" if self.text is None else self.text.text,
            token_ids=tuple(self.token_ids),
            cumulative_logprob=total if wanted else None,
            logprobs=tuple(self.logprobs) if wanted else None,
            finish_reason=self.reason,
            stop_reason=self.stop_reason,
            seed=self.seed,
            structured=self.structured,
            violation=self.violation,
        )


class Ended(NamedTuple):
    """A completion that has ended: its ids, and whether the end token was the last of them."""

    index: int
    token_ids: tuple[int, ...]
    by_itself: bool


class RequestState:
    """A caller's request while it runs.

    Args:
        request_id: the caller's name for it.
        prompt: text, or None.
        prompt_ids: checked ids.
        params: the caller's values, `n` included.
        seed: the seed of its noise.
        tokens: bytes of tokens, None without a tokenizer.
    """

    def __init__(
        self,
        request_id: str,
        prompt: str | None,
        prompt_ids: tuple[int, ...],
        params: SamplingParams,
        seed: int,
        tokens: TokenBytes | None,
    ):
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_ids = prompt_ids
        self.params = params
        self._prompt_logprobs: list[Entries | None] = [None]
        self._cached = 0
        self._metrics: RequestMetrics | None = None
        self._completions = [
            _Completion(
                index,
                seed,
                OutputText(tokens, params, prompt_ids)
                if tokens is not None and params.detokenize
                else None,
            )
            for index in range(params.n)
        ]

    @property
    def finished(self) -> bool:
        """All completions have ended."""
        return all(c.reason is not None for c in self._completions)

    def ended(self) -> list[Ended]:
        """The completions that have ended."""
        return [
            Ended(c.index, tuple(c.token_ids), c.reason == "stop" and c.stop_reason is None)
            for c in self._completions
            if c.reason is not None
        ]

    def judge(self, index: int, structured: str, violation: str | None) -> None:
        """Say which part of a completion had to satisfy its demand, and what is wrong with it."""
        completion = self._completions[index]
        completion.structured, completion.violation = structured, violation

    def add_prompt_logprobs(self, sample: int, start: int, entries: list[Entries]) -> None:
        """Log-probabilities of the prompt tokens from `start` on; the first sample's are kept.

        A preempted request computes its prompt again: what is known already is passed over.
        """
        known = len(self._prompt_logprobs)
        if sample == 0:
            self._prompt_logprobs += entries[max(known - start, 0) :]

    def push(self, sample: int, news: Progress, logprobs: list[Entries]) -> bool:
        """Take the news of one core request.

        Args:
            sample: which of the `n`.
            news: new ids and, with the last one, the reason.
            logprobs: one entry an id if asked for, else empty.

        Returns:
            Whether a stop string ended it that the core does not know of.
        """
        completion = self._completions[sample]
        if completion.reason is not None:  # a stop string ended it before
            return False
        self._cached = max(self._cached, news.num_cached_tokens)
        if news.metrics is not None:
            others = self._metrics
            self._metrics = news.metrics if others is None else others.joined(news.metrics)
        ids = news.token_ids
        stopped = False
        if completion.text is not None:
            ended = news.finish_reason == "stop"
            delta = completion.text.push(ids, ended=ended)
            if delta.stop is None and news.finish_reason is not None:
                delta = completion.text.finish()._replace(kept=len(ids))
            ids = ids[: delta.kept]
            if delta.stop is not None:
                completion.reason, completion.stop_reason = "stop", delta.stop
                stopped = news.finish_reason is None
        completion.token_ids += ids
        completion.logprobs += logprobs[: len(ids)]
        if completion.reason is None:
            completion.reason = news.finish_reason
            completion.stop_reason = news.stop_id
            completion.error = news.error
        return stopped

    def end(self, error: str) -> RequestOutput:
        """The last result, if nothing more can come: what there is, and why there is no more."""
        for completion in self._completions:
            if completion.reason is None:
                if completion.text is not None:
                    completion.text.finish()
                completion.reason, completion.error = "error", error
        return self.output()

    def output(self) -> RequestOutput:
        """The whole state so far."""
        errors = [c.error for c in self._completions if c.error is not None]
        wanted = self.params.prompt_logprobs is not None
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            outputs=tuple(c.output(self.params) for c in self._completions),
            finished=self.finished,
            prompt_logprobs=tuple(self._prompt_logprobs) if wanted else None,
            num_cached_tokens=self._cached,
            metrics=self._metrics,
            error=errors[0] if errors else None,
        )


def logprob_entries(
    arrays: TopLogprobs, index: tuple[int, ...], token: int, tokenizer: TextTokenizer | None
) -> Entries:
    """The entries of one generated token: the chosen one first, then the best.

    Args:
        arrays: log-probabilities of a step.
        index: where the token stands in their leading axes.
        token: the chosen id.
        tokenizer: adds the token's text, if given.
    """

    def entry(chosen: int, value: float, rank: int) -> Logprob:
        text = None if tokenizer is None else tokenizer.decode([chosen], skip_special_tokens=False)
        return Logprob(value, rank, text)

    found = {token: entry(token, float(arrays.chosen[index]), int(arrays.ranks[index]))}
    for rank, (other, value) in enumerate(
        zip(arrays.ids[index].tolist(), arrays.values[index].tolist(), strict=True), start=1
    ):
        if other >= 0 and other != token:
            found[other] = entry(other, value, rank)
    return found


def step_entries(
    result: StepResult, place: int, ids: tuple[int, ...], tokenizer: TextTokenizer | None
) -> list[Entries]:
    """Entries of the ids that a row generated in a step; empty if nobody asked."""
    if result.logprobs is None or place < 0:
        return []
    return [
        logprob_entries(result.logprobs, (place, depth), token, tokenizer)
        for depth, token in enumerate(ids)
    ]


def failed(request_id: str, prompt: object, error: str) -> RequestOutput:
    """The result of an input that never entered the engine."""
    text = prompt if isinstance(prompt, str) else None
    return RequestOutput(request_id, text, (), (), error=error)


def death(error: BaseException) -> str:
    """What an input hears that the engine did not live to answer."""
    return f"{ENGINE_DIED}: {type(error).__name__}: {error}"


def died(request_id: str, prompt: object, error: BaseException) -> RequestOutput:
    """The result of an input that the engine did not live to answer, nor to say what there was."""
    return failed(request_id, prompt, death(error))
