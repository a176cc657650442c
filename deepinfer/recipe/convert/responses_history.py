"""The items of a Responses request as messages of a conversation, turn by turn.

It does not know the other wishes of the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from deepinfer.recipe.conversation import (
    AssistantMessage,
    ImageSource,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
)
from deepinfer.recipe.convert import images
from deepinfer.recipe.convert.content import PART_SEPARATOR, UNSUPPORTED_IMAGE, Content, joined
from deepinfer.recipe.convert.responses_body import (
    CallItem,
    FilePart,
    FoundToolsItem,
    ImagePart,
    Item,
    MessageItem,
    OutputItem,
    Part,
    ReasoningItem,
    ResponsesBody,
    TextPart,
)
from deepinfer.recipe.convert.responses_functions import Namer, declare, shown, usable
from deepinfer.recipe.convert.responses_tools import SEARCH_TOOL, CustomTool, SearchTool
from deepinfer.recipe.convert.tools import DeclaredTool, check_not_empty
from deepinfer.recipe.failures import ConversionError
from deepinfer.recipe.json_text import compact
from deepinfer.recipe.options import ConversionOptions, ModelVersion, ResponsesSettings
from deepinfer.recipe.special_tokens import SpecialToken

_UNSUPPORTED_FILE = "[Unsupported Document]"
_REASONING_SEPARATOR = "\n"


@dataclass(slots=True)
class _Turn:
    """An assistant turn while its items come in."""

    content: str = ""
    reasoning: str | None = None
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    results: dict[str, Message] = field(default_factory=dict[str, Message])
    tools: list[Message] = field(default_factory=list[Message])  # bring found tools


class History:
    """Puts items together as messages: reasoning, text and calls of one turn are one message.

    Args:
        body: the request.
        version: V4 sees no images and does not search for tools.
        options: spelling of the image token, and what to do about web search.
    """

    def __init__(self, body: ResponsesBody, version: ModelVersion, options: ConversionOptions):
        self.messages: list[Message] = []
        self._body = body
        self._v41 = version is ModelVersion.DeepseekV41Flash
        self._version = version
        self._image_token = options.special_tokens.token(SpecialToken.Image)
        self._web_search = options.responses_web_search
        self._namer = Namer(version, body.tools or [])
        self._found_tools: dict[str, list[DeclaredTool]] = {}  # by the place of their item
        self._turn: _Turn | None = None
        self._known: set[str] = set()  # ids of all calls so far
        self._answered: set[str] = set()

    def declare(self) -> list[DeclaredTool]:
        """The tools of the request, and those that searches in it have found.

        Raises:
            ConversionError: a declaration cannot be.
        """
        tools = usable(self._body.tools or [], self._version)
        declared = declare(tools, "tools", self._namer, self._web_search)
        for path, item in self._items():
            if isinstance(item, FoundToolsItem):
                found = declare(
                    item.tools, f"{path}.tools", self._namer, self._web_search, deferred=True
                )
                self._found_tools[path] = found
                declared += found
        return declared

    def settings(self, echo: Mapping[str, Any]) -> ResponsesSettings:
        """What answers need to know of the tools that were declared."""
        tools = [*usable(self._body.tools or [], self._version)]
        for _, item in self._items():
            tools += item.tools if isinstance(item, FoundToolsItem) else []
        return ResponsesSettings(
            echo=echo,
            namespace_tool_map=self._namer.names(),
            custom_tools=frozenset(tool.name for tool in tools if isinstance(tool, CustomTool)),
            search_tools=frozenset(
                SEARCH_TOOL
                for tool in tools
                if isinstance(tool, SearchTool) and tool.execution == "client"
            ),
        )

    def read(self) -> None:
        """Read instructions and input.

        Raises:
            ConversionError: an item cannot be, a call has no result or a result no call.
        """
        if self._body.instructions:
            self.messages.append(SystemMessage(self._body.instructions))
        if isinstance(self._body.input, str):
            self.messages.append(Content(self._body.input).as_user())
        for path, item in self._items():
            self._item(item, path)
        self._close()

    def _items(self) -> Iterator[tuple[str, Item]]:
        """The items that count, with their places: V4 does not learn of searches for tools."""
        items = [] if isinstance(self._body.input, str) else self._body.input or []
        for i, item in enumerate(items):
            is_search = isinstance(item, FoundToolsItem) or (
                isinstance(item, CallItem) and item.is_search
            )
            if item is not None and not (is_search and not self._v41):
                yield f"input[{i}]", item

    def _item(self, item: Item, path: str) -> None:
        if isinstance(item, MessageItem):
            self._message(item, path)
        elif isinstance(item, ReasoningItem):
            self._reasoning(item)
        elif isinstance(item, CallItem):
            self._call(item, path)
        elif isinstance(item, OutputItem):
            self._output(item, path)
        else:
            self._found(item, path)

    def _message(self, item: MessageItem, path: str) -> None:
        if item.role != "assistant":
            self._close()
            content = self._content(item.content, f"{path}.content", path)
            # V4 takes the words of a developer as those of a user.
            is_user = item.role == "user" or (item.role == "developer" and not self._v41)
            self.messages.append(content.as_user() if is_user else content.as_system())
            return
        turn = self._turn
        if turn is not None and turn.calls:
            self._close()
        content = self._content(item.content, f"{path}.content", path, images_allowed=False)
        turn = self._open()
        texts = [text for text in (turn.content, content.text) if text]
        turn.content = PART_SEPARATOR.join(texts)

    def _reasoning(self, item: ReasoningItem) -> None:
        text = _REASONING_SEPARATOR.join(item.texts)
        turn = self._turn
        if turn is not None and (turn.calls or (turn.content and text)):
            self._close()
        if not text:
            return
        turn = self._open()
        earlier = [] if turn.reasoning is None else [turn.reasoning]
        turn.reasoning = _REASONING_SEPARATOR.join([*earlier, text])

    def _call(self, item: CallItem, path: str) -> None:
        check_not_empty(item.call_id, f"{path}.call_id")
        if item.call_id in self._known:
            raise ConversionError(f"Duplicate 'call_id': {item.call_id}.", f"{path}.call_id")
        self._known.add(item.call_id)
        name = self._namer.joined(item.namespace, item.name)
        self._open().calls.append(ToolCall(item.call_id, name, item.arguments))

    def _output(self, item: OutputItem, path: str) -> None:
        call_id = item.call_id
        if call_id is not None and item.is_custom:
            self._check_result(call_id, path)
        content = self._content(item.output, f"{path}.output", path)
        if call_id is None:
            self._close()
            self.messages.append(content.as_tool(None))
            return
        if not item.is_custom:
            self._check_result(call_id, path)
        self._result(call_id, content)

    def _found(self, item: FoundToolsItem, path: str) -> None:
        self._check_result(item.call_id, path)
        brought = [ToolDefinition(tool.name) for tool in self._found_tools[path]]
        if brought:
            self._open().tools.append(SystemMessage("", None, brought))
        self._result(item.call_id, Content(compact(shown(item.tools, path))))

    def _check_result(self, call_id: str, path: str) -> None:
        check_not_empty(call_id, f"{path}.call_id")
        if call_id not in self._known:
            raise ConversionError(
                f"No tool call found for tool output with call_id {call_id}.", f"{path}.call_id"
            )
        if call_id in self._answered:
            raise ConversionError(
                f"Duplicate tool output for call_id: {call_id}.", f"{path}.call_id"
            )
        self._answered.add(call_id)

    def _result(self, call_id: str, content: Content) -> None:
        turn = self._open()
        turn.results[call_id] = content.as_tool(call_id)
        if len(turn.results) == len(turn.calls):
            self._close()

    def _open(self) -> _Turn:
        if self._turn is None:
            self._turn = _Turn()
        return self._turn

    def _close(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        for call in turn.calls:
            if call.id not in turn.results:
                raise ConversionError(f"No tool output found for tool call {call.id}.", "input")
        calls = turn.calls or None
        self.messages.append(AssistantMessage(turn.content, turn.reasoning, calls))
        self.messages += [turn.results[call.id] for call in turn.calls]
        self.messages += turn.tools

    def _content(
        self, content: str | list[Part], path: str, image_path: str, *, images_allowed: bool = True
    ) -> Content:
        if isinstance(content, str):
            return Content(content)
        urls = {
            i: _image_url(part, f"{path}[{i}]")
            for i, part in enumerate(content)
            if isinstance(part, ImagePart) and self._v41
        }
        if urls and not images_allowed:
            raise ConversionError(
                f"{image_path}: Image in assistant message is unsupported", image_path
            )
        parts: list[str | ImageSource] = []
        for i, part in enumerate(content):
            if isinstance(part, TextPart):
                parts.append(part.text)
            elif isinstance(part, FilePart):
                parts.append(_UNSUPPORTED_FILE)
            elif i in urls:
                parts.append(images.from_any_url(urls[i], part.detail, image_path))
            else:
                parts.append(UNSUPPORTED_IMAGE)
        return joined(parts, self._image_token)


def _image_url(part: ImagePart, path: str) -> str:
    if part.image_url and part.file_id is not None:
        raise ConversionError(f"{path}: input_image cannot have both image_url and file_id", path)
    if part.image_url:
        return part.image_url
    if part.file_id is not None:
        raise ConversionError(f"{path}: {images.FILE_ID_UNSUPPORTED}", path)
    raise ConversionError(f"{path}: input_image must have image_url or file_id", path)
