"""The body of a Messages request: its parts and how they are read (recipe.md 4.11).

It checks shapes only; what the parts ask for is checked by `messages`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from deepinfer.recipe.convert.images import MEDIA_TYPES
from deepinfer.recipe.convert.thinking import EFFORTS, THINKING_TYPES
from deepinfer.recipe.convert.tools import NamedTool, Wish
from deepinfer.recipe.json_text import spaced_short
from deepinfer.recipe.shapes import (
    Field,
    Reader,
    ShapeError,
    any_value,
    as_object,
    boolean,
    choice,
    float32,
    labelled,
    list_of,
    maybe,
    optional,
    record,
    string,
    tagged,
    text_or_list,
    uint32,
    uint64,
    wrong_type,
)

CLIENT_TOOL = "custom"  # type of a tool that the client runs; it may also be left out
WEB_SEARCH = "web_search"  # name of a tool of the server that has none


@dataclass(frozen=True, slots=True)
class TextBlock:
    """A text."""

    text: str


@dataclass(frozen=True, slots=True)
class Base64Image:
    """An image in base64."""

    media_type: str
    data: str


@dataclass(frozen=True, slots=True)
class UrlImage:
    """An image to fetch."""

    url: str


@dataclass(frozen=True, slots=True)
class FileImage:
    """An image in a store of files that is not here."""

    file_id: str


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """An image."""

    source: Base64Image | UrlImage | FileImage


@dataclass(frozen=True, slots=True)
class DocumentBlock:
    """A document, which no model here reads."""

    media_type: str | None


@dataclass(frozen=True, slots=True)
class ThinkingBlock:
    """What an answer was thought out with."""

    thinking: str


@dataclass(frozen=True, slots=True)
class ToolUseBlock:
    """A tool call."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ServerToolBlock:
    """A call of a tool of the server (`is_use`), or its result."""

    is_use: bool


@dataclass(frozen=True, slots=True)
class ReferenceBlock:
    """The name of a tool that becomes known here."""

    name: str


ResultPart: TypeAlias = TextBlock | ImageBlock | DocumentBlock | ReferenceBlock


@dataclass(frozen=True, slots=True)
class ToolResultBlock:
    """The result of a tool call."""

    tool_use_id: str
    content: str | list[ResultPart] | None


@dataclass(frozen=True, slots=True)
class ToolAdditionBlock:
    """A deferred tool becomes known."""

    name: str


Block: TypeAlias = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ThinkingBlock
    | ToolUseBlock
    | ServerToolBlock
    | ToolResultBlock
    | ToolAdditionBlock
)


@dataclass(frozen=True, slots=True)
class MessagesMessage:
    """A message of any role."""

    role: str
    content: str | list[Block]


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the client runs."""

    name: str
    description: str | None
    input_schema: Any
    deferred: bool


@dataclass(frozen=True, slots=True)
class ServerTool:
    """A tool that the server would run."""

    type: str
    name: str


@dataclass(frozen=True, slots=True)
class MessagesBody:
    """A whole request. None stands for what is missing."""

    model: str
    messages: list[MessagesMessage]
    max_tokens: int | None
    system: str | list[TextBlock] | None
    temperature: float | None
    top_p: float | None
    stop_sequences: list[str] | None
    stream: bool | None
    tools: list[ClientTool | ServerTool] | None
    tool_choice: Wish | None
    thinking: str | None
    effort: str | None


def _image(source: Base64Image | UrlImage | FileImage) -> ImageBlock:
    return ImageBlock(source)


def _document(source: str | None) -> DocumentBlock:
    return DocumentBlock(source)


def _thought(thinking: str, signature: str | None) -> ThinkingBlock:
    return ThinkingBlock(thinking)


def _tool_use(id: str, name: str, input: Any) -> ToolUseBlock:
    return ToolUseBlock(id, name, spaced_short(input))


def _server_use(**unused: Any) -> ServerToolBlock:
    return ServerToolBlock(is_use=True)


def _server_result(**unused: Any) -> ServerToolBlock:
    return ServerToolBlock(is_use=False)


def _result(
    tool_use_id: str, content: str | list[ResultPart] | None, is_error: bool | None
) -> ToolResultBlock:
    return ToolResultBlock(tool_use_id, content)


def _reference(tool_name: str) -> ReferenceBlock:
    return ReferenceBlock(tool_name)


def _addition(tool: str) -> ToolAdditionBlock:
    return ToolAdditionBlock(tool)


def _only(**values: Any) -> Any:
    return next(iter(values.values()))


def _body(metadata: Any, output_config: str | None, **values: Any) -> MessagesBody:
    return MessagesBody(effort=output_config, **values)


_STRING = Field(string)
_COMPLAINT = "expected a string or a list"
_TEXT: Reader[TextBlock] = record(TextBlock, "struct TextBlock", text=_STRING)
_IMAGE: Reader[ImageBlock] = record(
    _image,
    "struct ImageBlock",
    source=Field(
        tagged(
            "MessagesImageSource",
            "type",
            {
                "base64": record(
                    Base64Image,
                    "struct Base64Image",
                    media_type=Field(choice(*MEDIA_TYPES)),
                    data=_STRING,
                ),
                "url": record(UrlImage, "struct UrlImage", url=_STRING),
                "file": record(FileImage, "struct FileImage", file_id=_STRING),
            },
        )
    ),
)
_DOCUMENT: Reader[DocumentBlock] = record(
    _document,
    "struct DocumentBlock",
    source=Field(record(_only, "struct MessagesDocumentSource", media_type=maybe(string))),
)
_RESULT_PART: Reader[ResultPart] = tagged(
    "MessagesToolResultBlock",
    "type",
    {
        "text": _TEXT,
        "image": _IMAGE,
        "document": _DOCUMENT,
        "tool_reference": record(_reference, "struct ToolReference", tool_name=_STRING),
    },
)
_BLOCK: Reader[Block] = tagged(
    "MessagesContentBlock",
    "type",
    {
        "text": _TEXT,
        "image": _IMAGE,
        "document": _DOCUMENT,
        "thinking": record(_thought, "struct Thinking", thinking=_STRING, signature=maybe(string)),
        "server_tool_use": record(
            _server_use, "struct ServerToolUse", id=_STRING, name=_STRING, input=Field(any_value)
        ),
        "tool_use": record(
            _tool_use, "struct ToolUse", id=_STRING, name=_STRING, input=Field(any_value)
        ),
        "tool_result": record(
            _result,
            "struct ToolResult",
            tool_use_id=_STRING,
            content=maybe(text_or_list(_RESULT_PART, _COMPLAINT)),
            is_error=maybe(boolean),
        ),
        "web_search_tool_result": record(
            _server_result, "struct WebSearchResult", tool_use_id=_STRING, content=Field(any_value)
        ),
        "tool_addition": record(
            _addition,
            "struct ToolAddition",
            tool=Field(
                tagged(
                    "MessagesToolReference",
                    "type",
                    {"tool_reference": record(_only, "struct ToolReference", name=_STRING)},
                )
            ),
        ),
    },
)
_CONTENT = text_or_list(_BLOCK, _COMPLAINT)
_ROLE = choice("user", "assistant", "system")


def _message(value: Any, path: str) -> MessagesMessage:
    members = as_object(value)
    if members is None:
        expected = "adjacently tagged enum MessagesMessage"
        if value == []:
            raise ShapeError(f"invalid length 0, expected {expected}", path)
        return wrong_type(value, expected, path)
    if "role" not in members:
        raise ShapeError("missing field `role`", path)
    role = _ROLE(members["role"], f"{path}.role")
    if "content" not in members:
        raise ShapeError("missing field `content`", path)
    return MessagesMessage(role, _CONTENT(members["content"], f"{path}.content"))


def _tool(value: Any, path: str) -> ClientTool | ServerTool:
    members = as_object(value) or {}
    kind = string(members["type"], f"{path}.type") if "type" in members else CLIENT_TOOL
    if kind != CLIENT_TOOL:
        name = optional(string)(members.get("name"), f"{path}.name")
        return ServerTool(kind, WEB_SEARCH if name is None else name)
    if "name" not in members:
        raise ShapeError("missing field `name`", path)
    return ClientTool(
        labelled("name", string)(members, path),
        labelled("description", optional(string))(members, path),
        members.get("input_schema"),
        labelled("defer_loading", optional(boolean))(members, path) is True,
    )


_PARALLEL = maybe(boolean)


def _wish(word: Wish) -> Any:
    def make(disable_parallel_tool_use: bool | None = None) -> Wish:
        return word

    return make


def _named(name: str, disable_parallel_tool_use: bool | None) -> Wish:
    return NamedTool(name)


_TOOL_CHOICE: Reader[Wish] = tagged(
    "MessagesToolChoice",
    "type",
    {
        "auto": record(_wish("auto"), "struct Auto", disable_parallel_tool_use=_PARALLEL),
        # The model cannot be made to call some tool or other; see recipe.md 2.11.
        "any": record(_wish("auto"), "struct Any", disable_parallel_tool_use=_PARALLEL),
        "tool": record(_named, "struct Tool", name=_STRING, disable_parallel_tool_use=_PARALLEL),
        "none": record(_wish("none"), "struct None"),
    },
)


def _thinking(type: str, budget_tokens: int | None) -> str:
    return type


read_messages = record(
    _body,
    "struct MessagesRequest",
    model=_STRING,
    messages=Field(list_of(_message)),
    max_tokens=maybe(uint32),
    system=maybe(text_or_list(tagged("MessagesSystemBlock", "type", {"text": _TEXT}), _COMPLAINT)),
    temperature=maybe(float32),
    top_p=maybe(float32),
    stop_sequences=maybe(list_of(string)),
    stream=maybe(boolean),
    tools=maybe(list_of(_tool)),
    tool_choice=maybe(_TOOL_CHOICE),
    thinking=maybe(
        record(
            _thinking,
            "struct MessagesThinking",
            type=Field(choice(*THINKING_TYPES)),
            budget_tokens=maybe(uint64),
        )
    ),
    output_config=maybe(
        record(_only, "struct MessagesOutputConfig", effort=maybe(choice(*EFFORTS)))
    ),
    metadata=maybe(record(_only, "struct MessagesMetadata", user_id=maybe(string))),
)
