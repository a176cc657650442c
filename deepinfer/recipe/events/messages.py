"""Messages: the events of a stream and the message they add up to (recipe.md 3.10).

It does not know how model output is marked up.
"""

from __future__ import annotations

import random
from typing import Literal, TypeAlias

from deepinfer.recipe.events.calls import CallIds
from deepinfer.recipe.events.protocol import Ending
from deepinfer.recipe.events.wire import normalised, quote, quote_or_null
from deepinfer.recipe.inference import InferenceFinishReason, PromptUsage, check_kind

_Kind: TypeAlias = Literal["thinking", "text", "tool_use"]
_REASONS = {
    InferenceFinishReason.Length: "max_tokens",
    InferenceFinishReason.ContentFilter: "refusal",
}


def _usage_json(prompt: PromptUsage, output_tokens: int) -> str:
    hit = prompt.prompt_cache_hit_tokens
    return (
        f'{{"input_tokens":{max(prompt.prompt_tokens - hit, 0)},"cache_creation_input_tokens":0,'
        f'"cache_read_input_tokens":{hit},"output_tokens":{output_tokens},'
        f'"service_tier":"standard"}}'
    )


class _Block:
    """A content block that grows."""

    __slots__ = ("call_id", "closed", "kind", "name", "pieces", "signature")

    def __init__(self, kind: _Kind, call_id: str = "", name: str = "") -> None:
        self.kind: _Kind = kind
        self.call_id = call_id
        self.name = name
        self.pieces: list[str] = []
        self.signature = ""
        self.closed = False

    def blank(self) -> _Block:
        """The same block without its text."""
        return _Block(self.kind, self.call_id, self.name)

    def to_json(self) -> str:
        """The block as it stands; the input of a tool shows when the block is closed."""
        text = "".join(self.pieces)
        if self.kind == "text":
            return f'{{"type":"text","text":{quote(text)}}}'
        if self.kind == "thinking":
            return (
                f'{{"type":"thinking","thinking":{quote(text)},'
                f'"signature":{quote(self.signature)}}}'
            )
        value = normalised(text) if self.closed else None
        return (
            f'{{"type":"tool_use","id":"{self.call_id}","name":{quote(self.name)},'
            f'"input":{"{}" if value is None else value}}}'
        )


class MessagesStreamEvent:
    """One event of a Messages stream.

    The fields say what it adds; `to_json` is what goes over the wire.
    """

    __slots__ = ("_json", "block", "delta", "message", "name", "signature", "stop", "usage")

    def __init__(
        self,
        name: str,
        json: str,
        *,
        block: _Block | None = None,
        delta: str | None = None,
        signature: str | None = None,
        message: tuple[str, str] | None = None,
        stop: tuple[str, str | None] | None = None,
        usage: str | None = None,
    ) -> None:
        self.name = name
        self._json = json
        self.block = block
        self.delta = delta
        self.signature = signature
        self.message = message  # id and model, both quoted
        self.stop = stop
        self.usage = usage

    def to_json(self) -> str:
        """The event as the data of a server-sent event."""
        return self._json


class MessagesChunkGenerator:
    """Makes the events of one answer.

    Args:
        id: of the message.
        model: the name told to the client.
        thinking_mode: the first block is a thinking block, also if it stays empty.
        source: of the randomness in ids of tool calls.
    """

    def __init__(
        self, id: str, model: str, thinking_mode: bool, *, source: random.Random | None = None
    ) -> None:
        self.consumed = False
        self._id, self._model, self._thinking = id, model, thinking_mode
        self._signature = id
        self._source = source
        self._ids = CallIds(source)
        self._reasoned = False
        self._index = -1
        self._block: _Block | None = None

    def with_signature(self, signature: str) -> MessagesChunkGenerator:
        """A generator that ends thinking blocks with `signature` instead of the id.

        Raises:
            RuntimeError: this generator is already in use.
        """
        if self.consumed:
            raise RuntimeError("chunk generator has been consumed")
        self.consumed = True
        changed = MessagesChunkGenerator(self._id, self._model, self._thinking, source=self._source)
        changed._signature = signature
        return changed

    def start(
        self, prompt: PromptUsage, system_fingerprint: str | None
    ) -> list[MessagesStreamEvent]:
        """The start of the message and, in thinking mode, of its first block."""
        names = (quote(self._id), quote(self._model))
        usage = _usage_json(prompt, 0)
        message = message_json(names, [], None, None, usage)
        json = f'{{"type":"message_start","message":{message}}}'
        events: list[MessagesStreamEvent] = [
            MessagesStreamEvent("message_start", json, message=names, usage=usage)
        ]
        if self._thinking:
            events += self._open(_Block("thinking"))
        return events

    def _open(self, block: _Block) -> list[MessagesStreamEvent]:
        events = self._close()
        self._index += 1
        self._block = block
        json = (
            f'{{"type":"content_block_start","index":{self._index},'
            f'"content_block":{block.to_json()}}}'
        )
        events.append(MessagesStreamEvent("content_block_start", json, block=block))
        if self._index == 0:
            events.append(MessagesStreamEvent("ping", '{"type":"ping"}'))
        return events

    def _close(self) -> list[MessagesStreamEvent]:
        events: list[MessagesStreamEvent] = []
        block = self._block
        if block is None:
            return events
        self._block = None
        if block.kind == "thinking":
            signed = f'{{"type":"signature_delta","signature":{quote(self._signature)}}}'
            json = f'{{"type":"content_block_delta","index":{self._index},"delta":{signed}}}'
            name = "content_block_delta"
            events.append(MessagesStreamEvent(name, json, signature=self._signature))
        json = f'{{"type":"content_block_stop","index":{self._index}}}'
        events.append(MessagesStreamEvent("content_block_stop", json))
        return events

    def _delta(self, kind: str, field: str, text: str) -> MessagesStreamEvent:
        json = (
            f'{{"type":"content_block_delta","index":{self._index},'
            f'"delta":{{"type":"{kind}","{field}":{quote(text)}}}}}'
        )
        return MessagesStreamEvent("content_block_delta", json, delta=text)

    def reasoning(self, text: str, logprobs: list[str] | None) -> list[MessagesStreamEvent]:
        """A piece of reasoning."""
        self._reasoned = True
        events: list[MessagesStreamEvent] = []
        if self._block is None or self._block.kind != "thinking":
            events = self._open(_Block("thinking"))
        events.append(self._delta("thinking_delta", "thinking", text))
        return events

    def content(self, text: str, logprobs: list[str] | None) -> list[MessagesStreamEvent]:
        """A piece of the answer."""
        events: list[MessagesStreamEvent] = []
        if self._block is None or self._block.kind != "text":
            events = self._open(_Block("text"))
        events.append(self._delta("text_delta", "text", text))
        return events

    def call(self, name: str) -> list[MessagesStreamEvent]:
        """A tool call begins."""
        call_id = self._ids.next(self._thinking and not self._reasoned)
        return self._open(_Block("tool_use", call_id, name))

    def arguments(self, text: str) -> list[MessagesStreamEvent]:
        """A piece of the arguments of the call that began last."""
        return [self._delta("input_json_delta", "partial_json", text)]

    def finish(self, ending: Ending) -> list[MessagesStreamEvent]:
        """The end of the open block and of the message."""
        events = self._close()
        default = "end_turn"
        if ending.stop_sequence is not None:
            default = "stop_sequence"
        elif ending.reason is InferenceFinishReason.Stop and self._ids.count:
            default = "tool_use"
        reason = default if ending.reason is None else _REASONS.get(ending.reason, default)
        usage = _usage_json(ending.usage.prompt, ending.usage.completion_tokens)
        stop = (reason, ending.stop_sequence)
        json = (
            f'{{"type":"message_delta","delta":{{"stop_reason":"{reason}",'
            f'"stop_sequence":{quote_or_null(ending.stop_sequence)}}},"usage":{usage}}}'
        )
        events.append(MessagesStreamEvent("message_delta", json, stop=stop, usage=usage))
        events.append(MessagesStreamEvent("message_stop", '{"type":"message_stop"}'))
        return events


def message_json(
    names: tuple[str, str],
    blocks: list[str],
    stop_reason: str | None,
    stop_sequence: str | None,
    usage: str,
) -> str:
    """A message; `names` are id and model as JSON text, `blocks` and `usage` JSON too."""
    return (
        f'{{"id":{names[0]},"type":"message","role":"assistant","model":{names[1]},'
        f'"content":[{",".join(blocks)}],"stop_reason":{quote_or_null(stop_reason)},'
        f'"stop_sequence":{quote_or_null(stop_sequence)},"usage":{usage}}}'
    )


class MessagesResponse:
    """The message of a request that is not streamed, added up from events.

    Args:
        id: of the message, until the first event tells its own.
        model: likewise.
        created: not reported by this protocol.
        prompt_tokens: of the prompt, until the first event tells.
        prompt_cache_hit_tokens: likewise, those that the prefix cache held.
    """

    def __init__(
        self, id: str, model: str, created: int, prompt_tokens: int, prompt_cache_hit_tokens: int
    ) -> None:
        self._names = (quote(id), quote(model))
        prompt = PromptUsage(
            prompt_tokens=prompt_tokens, prompt_cache_hit_tokens=prompt_cache_hit_tokens
        )
        self._usage = _usage_json(prompt, 0)
        self._blocks: list[_Block] = []
        self._stop: tuple[str | None, str | None] = (None, None)

    def accumulate(self, chunk: MessagesStreamEvent) -> None:
        """Add an event.

        Raises:
            TypeError: an event of another protocol.
        """
        check_kind(chunk, MessagesStreamEvent)
        if chunk.message is not None:
            self._names = chunk.message
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.stop is not None:
            self._stop = chunk.stop
        if chunk.block is not None:
            self._blocks.append(chunk.block.blank())
        elif chunk.delta is not None:
            self._blocks[-1].pieces.append(chunk.delta)
        elif chunk.signature is not None:
            self._blocks[-1].signature = chunk.signature
        elif chunk.name == "content_block_stop":
            self._blocks[-1].closed = True

    def to_json(self) -> str:
        """The message as it stands."""
        blocks = [block.to_json() for block in self._blocks]
        return message_json(self._names, blocks, *self._stop, self._usage)

    @staticmethod
    def sse_event_name(chunk: MessagesStreamEvent) -> str | None:
        """The name of the server-sent event."""
        return chunk.name

    @staticmethod
    def sse_done_data() -> str | None:
        """None: nothing follows the last event."""
        return None
