"""What callers of `LLM` may pass, one or many, as lists.

Knows nothing of engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from deepinfer.engine.border import Prompt
from deepinfer.engine.constrained import Demand
from deepinfer.errors import RequestError
from deepinfer.request import RequestOutput, SamplingParams, ScoreOutput

Conversation: TypeAlias = Sequence[Mapping[str, Any]]


class Job(NamedTuple):
    """One input that can be tried; `demand` is what a conversation asks of the output's form."""

    prompt: Prompt
    params: SamplingParams
    priority: int = 0
    demand: Demand | None = None


def prompt_of(job: Job | RequestError) -> object:
    """The prompt of an input, None if it could not be read."""
    return None if isinstance(job, RequestError) else job.prompt


def scored(output: RequestOutput) -> ScoreOutput:
    """The result of a prompt that was run for its own log-probabilities."""
    ids = output.prompt_token_ids
    if output.error is not None:
        return ScoreOutput(output.request_id, ids, (), output.error)
    entries = output.prompt_logprobs or ()
    values = [e[token].logprob for token, e in zip(ids, entries, strict=True) if e is not None]
    return ScoreOutput(output.request_id, ids, tuple(values))


def as_list(prompts: object) -> list[Prompt]:
    """One prompt or many: text, a mapping or a flat list of ids is one."""
    if isinstance(prompts, (str, Mapping)):
        return [cast("Prompt", prompts)]
    if not isinstance(prompts, Sequence):
        raise RequestError(f"prompts of type {type(prompts).__name__}: use a prompt or a list")
    items = list(cast("Sequence[object]", prompts))
    if items and all(isinstance(item, int) for item in items):
        return [cast("Prompt", items)]
    return cast("list[Prompt]", items)


def conversations(messages: object) -> list[Conversation]:
    """One conversation or many: a list of mappings is one."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise RequestError(
            f"messages of type {type(messages).__name__}: use a list of messages, or a list of "
            "such lists"
        )
    items = list(cast("Sequence[object]", messages))
    if items and all(isinstance(item, Mapping) for item in items):
        return [cast("Conversation", items)]
    return cast("list[Conversation]", items)


def one_each(name: str, values: object, count: int, default: object) -> list:  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
    """A list of `count` values: those given, one for all, or `default`."""
    if values is None:
        return [default] * count
    if not isinstance(values, Sequence):
        return [values] * count
    if len(values) != count:
        raise ValueError(f"{len(values)} {name} for {count} prompts; give one, or one a prompt")
    return list(values)
