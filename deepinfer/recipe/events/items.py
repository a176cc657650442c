"""Output items of Responses: reasoning, messages, calls of functions, custom and search tools.

It does not know when an item begins or ends.
"""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import NamedTuple

from deepinfer.recipe.events.wire import normalised, quote

_INPUT_START = '{"input": "'
_STRING_BODY = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)
_decode = json.JSONDecoder(strict=False).decode


class Wording(NamedTuple):
    """How the events of a kind of item are called."""

    id_prefix: str
    delta: str
    done: str
    field: str


class ItemKind(Enum):
    """The kinds of items."""

    REASONING = Wording(
        "rs", "response.reasoning_text.delta", "response.reasoning_text.done", "text"
    )
    MESSAGE = Wording("msg", "response.output_text.delta", "response.output_text.done", "text")
    FUNCTION = Wording(
        "fc",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "arguments",
    )
    CUSTOM = Wording(
        "ctc",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "input",
    )
    # A search is told as a whole, when it is complete.
    SEARCH = Wording("tsc", "", "", "arguments")


class Item:
    """An output item that grows.

    Args:
        kind: what it is.
        response_id: of the response it belongs to.
        index: its place in the output.
        call_id: of a call.
        name: of the tool that is called.
        namespace: of the tool, if the request declared it in one.
    """

    __slots__ = (
        "_names",
        "index",
        "kind",
        "logprobs",
        "opened",
        "phase",
        "pieces",
        "status",
    )

    def __init__(
        self,
        kind: ItemKind,
        response_id: str,
        index: int,
        call_id: str = "",
        name: str = "",
        namespace: str | None = None,
    ) -> None:
        self.kind = kind
        self.index = index
        self._names = (response_id, call_id, name, namespace)
        self.status = "in_progress"
        self.phase = "final_answer"
        self.opened = False  # the content part of reasoning or a message has begun
        self.pieces: list[str] = []
        self.logprobs: list[str] = []

    @property
    def id(self) -> str:
        """Of the item."""
        return f"{self.kind.value.id_prefix}_{self._names[0]}_{self.index}"

    @property
    def text(self) -> str:
        """What came so far: text, arguments or input."""
        return "".join(self.pieces)

    def blank(self) -> Item:
        """The item as it was when it began."""
        response_id, call_id, name, namespace = self._names
        return Item(self.kind, response_id, self.index, call_id, name, namespace)

    def settle(self, status: str) -> None:
        """End the item; a search whose arguments are no JSON is incomplete and has none."""
        self.status = status
        if self.kind is ItemKind.SEARCH:
            arguments = normalised(self.text)
            self.pieces = [arguments or ""]
            self.status = status if arguments else "incomplete"

    def part_json(self) -> str:
        """The content part of reasoning or a message."""
        if self.kind is ItemKind.REASONING:
            return f'{{"type":"reasoning_text","text":{quote(self.text)}}}'
        return (
            f'{{"type":"output_text","annotations":[],"logprobs":[{",".join(self.logprobs)}],'
            f'"text":{quote(self.text)}}}'
        )

    def to_json(self) -> str:
        """The item as it stands."""
        response_id, call_id, name, namespace = self._names
        head = f'"id":{quote(self.id)},"status":"{self.status}",'
        content = f'"content":[{self.part_json() if self.opened else ""}]'
        if self.kind is ItemKind.REASONING:
            secret = quote(f"{response_id}-{self.index}")
            return (
                f'{{"type":"reasoning",{head}{content},"summary":[],"encrypted_content":{secret}}}'
            )
        if self.kind is ItemKind.MESSAGE:
            return f'{{"type":"message",{head}"role":"assistant","phase":"{self.phase}",{content}}}'
        if self.kind is ItemKind.SEARCH:
            arguments = self.text if self.status == "completed" else "{}"
            return (
                f'{{"type":"tool_search_call",{head}"call_id":"{call_id}","execution":"client",'
                f'"arguments":{arguments}}}'
            )
        names = f'"call_id":"{call_id}","name":{quote(name)},'
        if namespace is not None:
            names += f'"namespace":{quote(namespace)},'
        kind = "function_call" if self.kind is ItemKind.FUNCTION else "custom_tool_call"
        return f'{{"type":"{kind}",{head}{names}"{self.kind.value.field}":{quote(self.text)}}}'


class CustomInput:
    """Unwraps the arguments `{"input": "..."}` of a call of a custom tool while they arrive.

    Arguments of another form are passed through as they are.
    """

    def __init__(self) -> None:
        self._undecided: str | None = ""
        self._raw = False
        self._closed = False

    def feed(self, arguments: str) -> str:
        """The input that a piece of arguments adds."""
        if self._undecided is not None:
            arguments = self._undecided + arguments
            if len(arguments) < len(_INPUT_START) and _INPUT_START.startswith(arguments):
                self._undecided = arguments
                return ""
            self._undecided = None
            self._raw = not arguments.startswith(_INPUT_START)
            if not self._raw:
                arguments = arguments[len(_INPUT_START) :]
        if self._raw:
            return arguments
        if self._closed:
            return ""
        body = _STRING_BODY.match(arguments)
        inside = "" if body is None else body.group()
        self._closed = len(inside) < len(arguments)
        return _decode(f'"{inside}"') if inside else ""

    def finish(self) -> str:
        """What was held back because it could have been the start of the wrapping."""
        held, self._undecided = self._undecided, None
        return held or ""
