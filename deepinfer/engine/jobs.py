"""The offline job: prompts in, one result a prompt out, whatever happens to a single one.

Knows nothing of where lines are read from or written to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from deepinfer.engine.sequential import Sequential
from deepinfer.engine.tokenizer import TextTokenizer
from deepinfer.errors import NonFiniteError, RequestError
from deepinfer.request import CompletionOutput, RequestOutput, ScoreOutput

_PROMPT_KEYS = ("prompt", "prompt_token_ids")
_GENERATE_KEYS = frozenset({*_PROMPT_KEYS, "id", "max_tokens"})
_SCORE_KEYS = frozenset({*_PROMPT_KEYS, "id"})


@dataclass(frozen=True)
class Job:
    """One line of a batch file.

    Attributes:
        request_id: the line's `id`, or its number from 0.
        prompt: text, or None.
        token_ids: ids, or None.
        max_tokens: its own limit, or None.
        error: why the line cannot be run, or None.
    """

    request_id: str
    prompt: str | None = None
    token_ids: tuple[int, ...] | None = None
    max_tokens: int | None = None
    error: str | None = None


def parse_lines(lines: Iterable[str], *, scoring: bool = False) -> Iterator[Job]:
    """Read JSON lines: an object with `prompt` (text) or `prompt_token_ids`, or a plain string.

    Blank lines are passed over; a line that cannot be read becomes a job with its error.
    """
    allowed = _SCORE_KEYS if scoring else _GENERATE_KEYS
    for number, line in enumerate(line for line in lines if line.strip()):
        try:
            data: object = json.loads(line)
            yield _job(str(number), data, allowed)
        except json.JSONDecodeError as error:
            yield Job(str(number), error=f"the line is not JSON: {error}")
        except RequestError as error:
            yield Job(str(number), error=str(error))


def _job(name: str, data: object, allowed: frozenset[str]) -> Job:
    if isinstance(data, str):
        return Job(name, prompt=data)
    if not isinstance(data, dict):
        raise RequestError(f"expected an object or a string, found {type(data).__name__}")
    fields = cast("Mapping[str, object]", data)
    if unknown := sorted(set(fields) - allowed):
        raise RequestError(f"unknown key(s) {unknown}; known are {sorted(allowed)}")
    if sum(key in fields for key in _PROMPT_KEYS) != 1:
        raise RequestError("give exactly one of 'prompt' and 'prompt_token_ids'")
    name = str(fields.get("id", name))
    prompt, ids = fields.get("prompt"), fields.get("prompt_token_ids")
    limit = fields.get("max_tokens")
    if "max_tokens" in fields and (not isinstance(limit, int) or isinstance(limit, bool)):
        raise RequestError(f"max_tokens {limit!r} is not an integer")
    if "prompt" in fields:
        if not isinstance(prompt, str):
            raise RequestError(f"prompt is not a string but {type(prompt).__name__}")
        return Job(name, prompt=prompt, max_tokens=cast("int | None", limit))
    if not isinstance(ids, list) or not all(
        isinstance(i, int) and not isinstance(i, bool) for i in cast("list[object]", ids)
    ):
        raise RequestError("prompt_token_ids is not a list of integers")
    return Job(name, token_ids=tuple(cast("list[int]", ids)), max_tokens=cast("int | None", limit))


class Offline:
    """Runs jobs one after another.

    Args:
        engine: does the computing.
        tokenizer: the text border; None serves prompts of ids only.
    """

    def __init__(self, engine: Sequential, tokenizer: TextTokenizer | None):
        self.engine = engine
        self.tokenizer = tokenizer

    def generate(self, job: Job, max_tokens: int) -> RequestOutput:
        """Run one job; its own `max_tokens` wins. Never raises for what is wrong with the job."""
        ids: list[int] = []
        try:
            ids = self._ids(job)
            limit = max_tokens if job.max_tokens is None else job.max_tokens
            tokens, reason = self.engine.generate(ids, limit)
            text = "" if self.tokenizer is None else self.tokenizer.decode(tokens)
            output = CompletionOutput(0, text, tuple(tokens), finish_reason=reason)
        except (RequestError, NonFiniteError) as error:
            return RequestOutput(job.request_id, job.prompt, tuple(ids), (), error=str(error))
        return RequestOutput(job.request_id, job.prompt, tuple(ids), (output,))

    def score(self, job: Job) -> ScoreOutput:
        """Score one job. Never raises for what is wrong with the job."""
        ids: list[int] = []
        try:
            ids = self._ids(job)
            return ScoreOutput(job.request_id, tuple(ids), tuple(self.engine.score(ids)))
        except (RequestError, NonFiniteError) as error:
            return ScoreOutput(job.request_id, tuple(ids), (), str(error))

    def _ids(self, job: Job) -> list[int]:
        if job.error is not None:
            raise RequestError(job.error)
        if job.token_ids is not None:
            return list(job.token_ids)
        if self.tokenizer is None:
            raise RequestError("this model has no tokenizer.json; give 'prompt_token_ids'")
        assert job.prompt is not None, "a parsed job has text or ids"
        return self.tokenizer.encode(job.prompt)
