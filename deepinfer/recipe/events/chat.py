"""Chat Completions: the chunks of a stream and the response they add up to (recipe.md 3.8).

It does not know how model output is marked up.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

from deepinfer.recipe.events.calls import CallIds
from deepinfer.recipe.events.protocol import Ending, Usage
from deepinfer.recipe.events.wire import quote, quote_or_null
from deepinfer.recipe.inference import InferenceFinishReason, PromptUsage, check_kind

_REASONS = {
    InferenceFinishReason.Length: "length",
    InferenceFinishReason.ContentFilter: "content_filter",
}


class ChatCompletionChunk:
    """One chunk of a Chat Completions stream.

    The fields say what it adds; `to_json` is what goes over the wire.
    """

    __slots__ = (
        "_json",
        "call",
        "choice",
        "content",
        "finish_reason",
        "fingerprint",
        "logprobs",
        "reasoning",
        "usage",
    )

    def __init__(
        self,
        json: str,
        choice: int,
        *,
        content: str | None = None,
        reasoning: str | None = None,
        call: tuple[int, str, str, str] | None = None,
        logprobs: list[str] | None = None,
        finish_reason: str | None = None,
        usage: Usage | None = None,
        fingerprint: str | None = None,
    ) -> None:
        self._json = json
        self.choice = choice
        self.content = content
        self.reasoning = reasoning
        # (index, id, name, arguments); id and name are empty in deltas of arguments.
        self.call = call
        self.logprobs = logprobs
        self.finish_reason = finish_reason
        self.usage = usage
        self.fingerprint = fingerprint

    def to_json(self) -> str:
        """The chunk as the data of a server-sent event."""
        return self._json


class ChatCompletionChunkGenerator:
    """Makes the chunks of one answer.

    Args:
        id: of the response.
        model: the name told to the client.
        thinking_mode: chunks have the field `reasoning_content`.
        starts_in_content: the prompt ends within the answer (prefix completion).
        created: seconds since 1970; now when None.
        choice: index of the answer among the `n` that a request asked for.
        usage_in_every_chunk: chunks before the last say that usage is null; in the wheel those of
            a stream do so only if it was asked for (`stream_options.include_usage`).
        source: of the randomness in ids of tool calls.
    """

    def __init__(
        self,
        id: str,
        model: str,
        thinking_mode: bool,
        *,
        starts_in_content: bool = False,
        created: int | None = None,
        choice: int = 0,
        usage_in_every_chunk: bool = True,
        source: random.Random | None = None,
    ) -> None:
        self.consumed = False
        self._names = (quote(id), int(time.time()) if created is None else created, quote(model))
        self._thinking = thinking_mode
        self._starts_in_content = starts_in_content
        self._choice = choice
        self._ids = CallIds(source)
        self._reasoned = False
        self._fingerprint: str | None = None
        self._prefix = ""
        # What stands before and after the text of the most frequent deltas.
        self._content_end = ',"reasoning_content":null}' if thinking_mode else "}"
        self._end = '],"usage":null}' if usage_in_every_chunk else "]}"

    def _wire(self, delta: str, logprobs: str = "null") -> str:
        return f'{self._prefix}{delta},"logprobs":{logprobs},"finish_reason":null}}{self._end}'

    def start(
        self, prompt: PromptUsage, system_fingerprint: str | None
    ) -> list[ChatCompletionChunk]:
        """The chunk that tells the role."""
        id_text, created, model = self._names
        self._fingerprint = system_fingerprint
        self._prefix = (
            f'{{"id":{id_text},"object":"chat.completion.chunk","created":{created},'
            f'"model":{model},"system_fingerprint":{quote_or_null(system_fingerprint)},'
            f'"choices":[{{"index":{self._choice},"delta":'
        )
        reasons = self._thinking and not self._starts_in_content
        content = 'null,"reasoning_content":""}' if reasons else f'""{self._content_end}'
        chunk = ChatCompletionChunk(
            self._wire(f'{{"role":"assistant","content":{content}'),
            self._choice,
            content=None if reasons else "",
            reasoning="" if reasons else None,
            fingerprint=system_fingerprint,
        )
        return [chunk]

    def reasoning(self, text: str, logprobs: list[str] | None) -> list[ChatCompletionChunk]:
        """A piece of reasoning."""
        self._reasoned = True
        delta = f'{{"content":null,"reasoning_content":{quote(text)}}}'
        listed = "null" if logprobs is None else f'{{"reasoning_content":[{",".join(logprobs)}]}}'
        wire = self._wire(delta, listed)
        return [ChatCompletionChunk(wire, self._choice, reasoning=text, logprobs=logprobs)]

    def content(self, text: str, logprobs: list[str] | None) -> list[ChatCompletionChunk]:
        """A piece of the answer."""
        delta = f'{{"content":{quote(text)}{self._content_end}'
        listed = "null" if logprobs is None else f'{{"content":[{",".join(logprobs)}]}}'
        wire = self._wire(delta, listed)
        return [ChatCompletionChunk(wire, self._choice, content=text, logprobs=logprobs)]

    def call(self, name: str) -> list[ChatCompletionChunk]:
        """A tool call begins."""
        index = self._ids.count
        call_id = self._ids.next(self._thinking and not self._reasoned)
        delta = (
            f'{{"tool_calls":[{{"index":{index},"id":"{call_id}","type":"function",'
            f'"function":{{"name":{quote(name)},"arguments":""}}}}]}}'
        )
        call = (index, call_id, name, "")
        return [ChatCompletionChunk(self._wire(delta), self._choice, call=call)]

    def arguments(self, text: str) -> list[ChatCompletionChunk]:
        """A piece of the arguments of the call that began last."""
        index = self._ids.count - 1
        delta = f'{{"tool_calls":[{{"index":{index},"function":{{"arguments":{quote(text)}}}}}]}}'
        call = (index, "", "", text)
        return [ChatCompletionChunk(self._wire(delta), self._choice, call=call)]

    def finish(self, ending: Ending) -> list[ChatCompletionChunk]:
        """The chunk with the finish reason and the usage."""
        stop = ending.reason is InferenceFinishReason.Stop and ending.stop_sequence is None
        default = "tool_calls" if stop and self._ids.count else "stop"
        reason = default if ending.reason is None else _REASONS.get(ending.reason, default)
        json = (
            f'{self._prefix}{{"content":""{self._content_end},"logprobs":null,'
            f'"finish_reason":"{reason}"}}],"usage":{usage_json(ending.usage)}}}'
        )
        chunk = ChatCompletionChunk(
            json,
            self._choice,
            content="",
            finish_reason=reason,
            usage=ending.usage,
            fingerprint=self._fingerprint,
        )
        return [chunk]


def _joined(entries: list[str] | None, more: list[str] | None) -> list[str] | None:
    if more is None:
        return entries
    if entries is None:
        return list(more)
    entries += more
    return entries


@dataclass(slots=True)
class _Choice:
    content: list[str] | None = None
    reasoning: list[str] | None = None
    calls: dict[int, tuple[str, str, list[str]]] = field(
        default_factory=dict[int, tuple[str, str, list[str]]]
    )
    content_logprobs: list[str] | None = None
    reasoning_logprobs: list[str] | None = None
    finish_reason: str | None = None

    def add(self, chunk: ChatCompletionChunk) -> None:
        """Apply the delta."""
        if chunk.content is not None:
            self.content = [] if self.content is None else self.content
            self.content.append(chunk.content)
            self.content_logprobs = _joined(self.content_logprobs, chunk.logprobs)
        if chunk.reasoning is not None:
            self.reasoning = [] if self.reasoning is None else self.reasoning
            self.reasoning.append(chunk.reasoning)
            self.reasoning_logprobs = _joined(self.reasoning_logprobs, chunk.logprobs)
        if chunk.call is not None:
            index, call_id, name, arguments = chunk.call
            self.calls.setdefault(index, (call_id, name, []))[2].append(arguments)
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason

    def to_json(self, index: int) -> str:
        """The choice as it stands."""
        content = "null" if self.content is None else quote("".join(self.content))
        message = f'{{"role":"assistant","content":{content}'
        if self.reasoning is not None:
            message += f',"reasoning_content":{quote("".join(self.reasoning))}'
        if self.calls:
            calls = [
                f'{{"index":{at},"id":"{call_id}","type":"function","function":'
                f'{{"name":{quote(name)},"arguments":{quote("".join(arguments))}}}}}'
                for at, (call_id, name, arguments) in self.calls.items()
            ]
            message += f',"tool_calls":[{",".join(calls)}]'
        lists = (("content", self.content_logprobs), ("reasoning_content", self.reasoning_logprobs))
        listed = [f'"{name}":[{",".join(items)}]' for name, items in lists if items is not None]
        logprobs = f"{{{','.join(listed)}}}" if listed else "null"
        return (
            f'{{"index":{index},"message":{message}}},"logprobs":{logprobs},'
            f'"finish_reason":{quote_or_null(self.finish_reason)}}}'
        )


class ChatCompletionResponse:
    """The response of a request that is not streamed, added up from chunks.

    Args:
        id: of the response.
        model: the name told to the client.
        created: seconds since 1970.
        prompt_tokens: of the prompt; the chunks' own usage is what gets reported.
        prompt_cache_hit_tokens: those that the prefix cache held.
    """

    def __init__(
        self, id: str, model: str, created: int, prompt_tokens: int, prompt_cache_hit_tokens: int
    ) -> None:
        self._id, self._model, self._created = id, model, created
        self._choices: dict[int, _Choice] = {}
        self._fingerprint: str | None = None
        self._usage: Usage | None = None

    def accumulate(self, chunk: ChatCompletionChunk) -> None:
        """Add a chunk; those of several choices may come in any order.

        Raises:
            TypeError: an event of another protocol.
        """
        check_kind(chunk, ChatCompletionChunk)
        self._choices.setdefault(chunk.choice, _Choice()).add(chunk)
        if chunk.fingerprint is not None:
            self._fingerprint = chunk.fingerprint
        if chunk.usage is not None:
            self._usage = chunk.usage if self._usage is None else self._usage.plus(chunk.usage)

    def to_json(self) -> str:
        """The response as it stands."""
        choices = ",".join(self._choices[i].to_json(i) for i in sorted(self._choices))
        usage = "" if self._usage is None else f'"usage":{usage_json(self._usage)},'
        return (
            f'{{"id":{quote(self._id)},"object":"chat.completion","created":{self._created},'
            f'"model":{quote(self._model)},"choices":[{choices}],{usage}'
            f'"system_fingerprint":{quote_or_null(self._fingerprint)}}}'
        )

    @staticmethod
    def sse_event_name(chunk: ChatCompletionChunk) -> str | None:
        """None: the events of this protocol have no name."""
        return None

    @staticmethod
    def sse_done_data() -> str | None:
        """The data of the last server-sent event."""
        return "[DONE]"


def usage_json(usage: Usage) -> str:
    """Usage in the words of Chat Completions."""
    prompt, completion = usage.prompt.prompt_tokens, usage.completion_tokens
    hit = usage.prompt.prompt_cache_hit_tokens
    details = ""
    if usage.reasoning_tokens is not None:
        details = f'"completion_tokens_details":{{"reasoning_tokens":{usage.reasoning_tokens}}},'
    return (
        f'{{"prompt_tokens":{prompt},"completion_tokens":{completion},'
        f'"total_tokens":{prompt + completion},"prompt_tokens_details":{{"cached_tokens":{hit}}},'
        f'{details}"prompt_cache_hit_tokens":{hit},'
        f'"prompt_cache_miss_tokens":{usage.missed_tokens}}}'
    )
