"""Responses: the events of a stream and the response they add up to (recipe.md 3.9).

It does not know how model output is marked up.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Set
from copy import copy
from dataclasses import replace

from deepinfer.recipe.events.calls import CallIds
from deepinfer.recipe.events.echo import ResponseFrame, ResponsesEcho
from deepinfer.recipe.events.items import CustomInput, Item, ItemKind
from deepinfer.recipe.events.protocol import Ending, Usage
from deepinfer.recipe.events.wire import quote
from deepinfer.recipe.inference import InferenceFinishReason, PromptUsage, check_kind

_INCOMPLETE = {
    InferenceFinishReason.Length: "max_output_tokens",
    InferenceFinishReason.ContentFilter: "content_filter",
}
_PART_KINDS = (ItemKind.REASONING, ItemKind.MESSAGE)
_CALL_KINDS = (ItemKind.FUNCTION, ItemKind.CUSTOM, ItemKind.SEARCH)


class ResponsesStreamEvent:
    """One event of a Responses stream.

    The fields say what it adds; `to_json` is what goes over the wire.
    """

    __slots__ = ("_json", "delta", "end", "frame", "item", "logprobs", "name")

    def __init__(
        self,
        name: str,
        json: str,
        *,
        item: Item | None = None,
        delta: str | None = None,
        logprobs: list[str] | None = None,
        frame: ResponseFrame | None = None,
        end: tuple[str, int | None, str | None, str] | None = None,
    ) -> None:
        self.name = name
        self._json = json
        self.item = item
        self.delta = delta
        self.logprobs = logprobs
        self.frame = frame
        self.end = end  # status, time of completion, incomplete reason, usage as JSON

    def to_json(self) -> str:
        """The event as the data of a server-sent event."""
        return self._json


class ResponsesChunkGenerator:
    """Makes the events of one answer.

    Args:
        id: of the response.
        model: the name told to the client.
        thinking_mode: marks ids of calls that come without reasoning.
        echo: settings that response objects repeat.
        namespace_tool_map: function name to (namespace, name in it).
        custom_tools: names of custom tools, whose input is text.
        search_tools: names of tools that search for further tools.
        created: seconds since 1970; now when None.
        source: of the randomness in ids of tool calls.
    """

    def __init__(
        self,
        id: str,
        model: str,
        thinking_mode: bool,
        *,
        echo: ResponsesEcho | None = None,
        namespace_tool_map: Mapping[str, tuple[str, str]] | None = None,
        custom_tools: Set[str] = frozenset(),
        search_tools: Set[str] = frozenset(),
        created: int | None = None,
        source: random.Random | None = None,
    ) -> None:
        self.consumed = False
        self._fixed = created is not None
        moment = int(time.time()) if created is None else created
        self._frame = ResponseFrame(id, model, moment, ResponsesEcho() if echo is None else echo)
        self._thinking = thinking_mode
        self._namespaces = dict(namespace_tool_map or {})
        self._special_tools = {
            **dict.fromkeys(custom_tools, ItemKind.CUSTOM),
            **dict.fromkeys(search_tools, ItemKind.SEARCH),
        }
        self._ids = CallIds(source)
        self._sequence = 0
        self._items: list[Item] = []
        self._open: Item | None = None
        self._input: CustomInput | None = None
        self._reasoned = False

    def with_namespace_tool_map(
        self, namespace_tool_map: dict[str, tuple[str, str]]
    ) -> ResponsesChunkGenerator:
        """A generator that tells calls of these functions as calls of tools in namespaces.

        Raises:
            RuntimeError: this generator is already in use.
        """
        changed = self._successor()
        changed._namespaces = dict(namespace_tool_map)
        return changed

    def with_echo(self, echo: ResponsesEcho) -> ResponsesChunkGenerator:
        """A generator whose response objects repeat these settings.

        Raises:
            RuntimeError: this generator is already in use.
        """
        changed = self._successor()
        changed._frame = replace(self._frame, echo=echo)
        return changed

    def _successor(self) -> ResponsesChunkGenerator:
        if self.consumed:
            raise RuntimeError("chunk generator has been consumed")
        successor = copy(self)
        self.consumed = True
        return successor

    def _event(self, name: str, body: str, tail: str = "") -> str:
        json = f'{{"type":"{name}",{body},"sequence_number":{self._sequence}{tail}}}'
        self._sequence += 1
        return json

    def _place(self, item: Item, content: bool) -> str:
        part = '"content_index":0,' if content else ""
        return f'{part}"item_id":{quote(item.id)},"output_index":{item.index}'

    def start(
        self, prompt: PromptUsage, system_fingerprint: str | None
    ) -> list[ResponsesStreamEvent]:
        """The response object, twice, as the protocol has it."""
        body = f'"response":{self._frame.to_json("in_progress")}'
        return [
            ResponsesStreamEvent(name, self._event(name, body), frame=self._frame)
            for name in ("response.created", "response.in_progress")
        ]

    def _begin(self, item: Item) -> list[ResponsesStreamEvent]:
        events = self._close("completed", item.kind)
        self._items.append(item)
        self._open = item
        name = "response.output_item.added"
        body = f'"item":{item.to_json()},"output_index":{item.index}'
        events.append(ResponsesStreamEvent(name, self._event(name, body), item=item))
        if item.kind in _PART_KINDS:
            item.opened = True
            name = "response.content_part.added"
            body = f'{self._place(item, True)},"part":{item.part_json()}'
            events.append(ResponsesStreamEvent(name, self._event(name, body)))
        return events

    def _close(self, status: str, follower: ItemKind | None) -> list[ResponsesStreamEvent]:
        item = self._open
        if item is None:
            return []
        events: list[ResponsesStreamEvent] = []
        if self._input is not None:
            held = self._input.finish()
            self._input = None
            if held:
                events.append(self._delta(item, held))
        self._open = None
        item.settle(status)
        if follower in _CALL_KINDS:
            item.phase = "commentary"
        if item.kind is not ItemKind.SEARCH:
            events.append(self._text_done(item))
        if item.kind in _PART_KINDS:
            name = "response.content_part.done"
            body = f'{self._place(item, True)},"part":{item.part_json()}'
            events.append(ResponsesStreamEvent(name, self._event(name, body)))
        name = "response.output_item.done"
        body = f'"item":{item.to_json()},"output_index":{item.index}'
        events.append(ResponsesStreamEvent(name, self._event(name, body), item=item))
        return events

    def _text_done(self, item: Item) -> ResponsesStreamEvent:
        wording = item.kind.value
        text = quote(item.text)
        if item.kind is ItemKind.REASONING:
            json = self._event(wording.done, self._place(item, True), f',"text":{text}')
        elif item.kind is ItemKind.MESSAGE:
            body = (
                f'"content_index":0,"item_id":{quote(item.id)},'
                f'"logprobs":[{",".join(item.logprobs)}],"output_index":{item.index}'
            )
            json = self._event(wording.done, body, f',"text":{text}')
        else:
            json = self._event(wording.done, f'"{wording.field}":{text},{self._place(item, False)}')
        return ResponsesStreamEvent(wording.done, json)

    def _delta(
        self, item: Item, text: str, logprobs: list[str] | None = None
    ) -> ResponsesStreamEvent:
        item.pieces.append(text)
        name = item.kind.value.delta
        part = '"content_index":0,' if item.kind in _PART_KINDS else ""
        listed = ""
        if item.kind is ItemKind.MESSAGE:
            item.logprobs += logprobs or ()
            listed = f'"logprobs":[{",".join(logprobs or ())}],'
        body = (
            f'{part}"delta":{quote(text)},"item_id":{quote(item.id)},{listed}'
            f'"output_index":{item.index}'
        )
        return ResponsesStreamEvent(name, self._event(name, body), delta=text, logprobs=logprobs)

    def _piece(
        self, kind: ItemKind, text: str, logprobs: list[str] | None
    ) -> list[ResponsesStreamEvent]:
        item = self._open
        events: list[ResponsesStreamEvent] = []
        if item is None or item.kind is not kind:
            item = Item(kind, self._frame.id, len(self._items))
            events = self._begin(item)
        events.append(self._delta(item, text, logprobs))
        return events

    def reasoning(self, text: str, logprobs: list[str] | None) -> list[ResponsesStreamEvent]:
        """A piece of reasoning."""
        self._reasoned = True
        return self._piece(ItemKind.REASONING, text, None)

    def content(self, text: str, logprobs: list[str] | None) -> list[ResponsesStreamEvent]:
        """A piece of the answer."""
        return self._piece(ItemKind.MESSAGE, text, logprobs)

    def call(self, name: str) -> list[ResponsesStreamEvent]:
        """A tool call begins."""
        call_id = self._ids.next(self._thinking and not self._reasoned)
        namespace, local = self._namespaces.get(name, (None, name))
        kind = self._special_tools.get(name, ItemKind.FUNCTION)
        item = Item(kind, self._frame.id, len(self._items), call_id, local, namespace)
        events = self._begin(item)
        self._input = CustomInput() if kind is ItemKind.CUSTOM else None
        return events

    def arguments(self, text: str) -> list[ResponsesStreamEvent]:
        """A piece of the arguments of the call that began last."""
        item = self._open
        assert item is not None
        if item.kind is ItemKind.SEARCH:
            item.pieces.append(text)
            return []
        if self._input is not None:
            text = self._input.feed(text)
        return [self._delta(item, text)] if text else []

    def finish(self, ending: Ending) -> list[ResponsesStreamEvent]:
        """The end of the open item and of the response."""
        reason = None if ending.reason is None else _INCOMPLETE.get(ending.reason)
        status = "completed" if reason is None else "incomplete"
        events = self._close(status, None)
        completed = self._frame.created if self._fixed else int(time.time())
        end = (status, completed, reason, _usage_json(ending.usage))
        items = [item.to_json() for item in self._items]
        name = f"response.{status}"
        body = f'"response":{self._frame.to_json(status, items, *end[1:])}'
        events.append(
            ResponsesStreamEvent(name, self._event(name, body), frame=self._frame, end=end)
        )
        return events


def _usage_json(usage: Usage) -> str:
    prompt, output = usage.prompt.prompt_tokens, usage.completion_tokens
    return (
        f'{{"input_tokens":{prompt},'
        f'"input_tokens_details":{{"cached_tokens":{usage.prompt.prompt_cache_hit_tokens}}},'
        f'"output_tokens":{output},'
        f'"output_tokens_details":{{"reasoning_tokens":{usage.reasoning_tokens or 0}}},'
        f'"total_tokens":{prompt + output}}}'
    )


class ResponsesResponse:
    """The response of a request that is not streamed, added up from events.

    Args:
        id: of the response, until the first event tells its own.
        model: likewise.
        created: seconds since 1970, likewise.
        prompt_tokens: not reported before the answer is complete.
        prompt_cache_hit_tokens: likewise.
    """

    def __init__(
        self, id: str, model: str, created: int, prompt_tokens: int, prompt_cache_hit_tokens: int
    ) -> None:
        self._frame = ResponseFrame(id, model, created, ResponsesEcho())
        self._items: list[Item] = []
        self._end: tuple[str, int | None, str | None, str] = ("in_progress", None, None, "null")

    def accumulate(self, chunk: ResponsesStreamEvent) -> None:
        """Add an event.

        Raises:
            TypeError: an event of another protocol.
        """
        check_kind(chunk, ResponsesStreamEvent)
        if chunk.frame is not None:
            self._frame = chunk.frame
        if chunk.end is not None:
            self._end = chunk.end
        if chunk.delta is not None:
            self._items[-1].pieces.append(chunk.delta)
            self._items[-1].logprobs += chunk.logprobs or ()
        elif chunk.name == "response.content_part.added":
            self._items[-1].opened = True
        elif chunk.item is not None and chunk.name == "response.output_item.added":
            self._items.append(chunk.item.blank())
        elif chunk.item is not None:
            self._items[-1].status = chunk.item.status
            self._items[-1].phase = chunk.item.phase
            self._items[-1].pieces = list(chunk.item.pieces)  # of searches none came before

    def to_json(self) -> str:
        """The response as it stands."""
        status, completed, reason, usage = self._end
        items = [item.to_json() for item in self._items]
        return self._frame.to_json(status, items, completed, reason, usage)

    @staticmethod
    def sse_event_name(chunk: ResponsesStreamEvent) -> str | None:
        """The name of the server-sent event."""
        return chunk.name

    @staticmethod
    def sse_done_data() -> str | None:
        """None: nothing follows the last event."""
        return None
