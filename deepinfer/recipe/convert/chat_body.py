"""The body of a Chat Completions request: its parts and how they are read (recipe.md 4.2).

It checks shapes only; what the parts ask for is checked by `chat`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from deepinfer.recipe.convert.formats import TEXT, AnswerFormat
from deepinfer.recipe.convert.thinking import EFFORTS, THINKING_TYPES
from deepinfer.recipe.convert.tools import NamedTool, Wish
from deepinfer.recipe.shapes import (
    Field,
    ShapeError,
    any_value,
    as_object,
    boolean,
    choice,
    float32,
    labelled,
    list_of,
    maybe,
    record,
    string,
    tagged,
    text_or_list,
    uint8,
    uint32,
    uint64,
)


@dataclass(frozen=True, slots=True)
class TextPart:
    """A text in a list of parts."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image in a list of parts."""

    url: str
    detail: str | None


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file in a list of parts, which no model here reads."""


Part: TypeAlias = TextPart | ImagePart | FilePart


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of an earlier turn."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of any role; fields of other roles have their defaults."""

    role: str
    content: str | list[Part] | None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str = ""
    prefix: bool | None = None
    task: Any = None


@dataclass(frozen=True, slots=True)
class ChatTool:
    """A function tool."""

    name: str
    description: str | None
    parameters: Any
    strict: bool | None


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What a stream tells."""

    include_usage: bool | None


@dataclass(frozen=True, slots=True)
class ChatBody:
    """A whole request. None stands for what is missing."""

    messages: list[ChatMessage]
    model: str
    thinking: str | None
    reasoning_effort: str | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    stop: str | list[str] | None
    stream: bool | None
    stream_options: StreamOptions | None
    response_format: AnswerFormat | None
    tools: list[ChatTool] | None
    tool_choice: Wish | None
    logprobs: bool | None
    top_logprobs: int | None
    seed: int | None
    n: int | None
    parallel_tool_calls: bool | None


def _constant(value: Any) -> Callable[..., Any]:
    """A maker that ignores what was read."""

    def make(**values: Any) -> Any:
        return value

    return make


def _message(role: str, **fields: Field) -> Any:
    def make(name: Any = None, **values: Any) -> ChatMessage:
        return ChatMessage(role, **values)

    return record(make, f"struct variant ChatCompletionRequestMessage::{role}", **fields)


def _call(id: str, type: str, function: tuple[str, str]) -> Call:
    return Call(id, *function)


def _tool(type: str, function: ChatTool) -> ChatTool:
    return function


def _image(image_url: ImagePart) -> ImagePart:
    return image_url


def _json_schema(json_schema: AnswerFormat) -> AnswerFormat:
    return json_schema


def _schema(name: Any, schema: tuple[Any, str], strict: bool | None) -> AnswerFormat:
    return AnswerFormat("json_schema", schema=schema[0], strict=strict, path=schema[1])


def _regex(regex: str) -> AnswerFormat:
    return AnswerFormat("regex", regex=regex)


def _with_path(value: Any, path: str) -> tuple[Any, str]:
    return value, path


def _pair(name: str, arguments: str) -> tuple[str, str]:
    return name, arguments


def _first(**values: Any) -> Any:
    return next(iter(values.values()))


_STRING, _NAME = Field(string), maybe(string)
_FUNCTION = Field(choice("function"))
_PART = tagged(
    "ChatCompletionRequestContentBlock",
    "type",
    {
        "text": record(TextPart, "struct TextBlock", text=_STRING),
        "image_url": record(
            _image,
            "struct ImageBlock",
            image_url=Field(
                record(
                    ImagePart,
                    "struct ChatCompletionImageUrl",
                    url=_STRING,
                    detail=maybe(choice("low", "high", "original", "auto")),
                )
            ),
        ),
        "file": record(FilePart, "struct FileBlock"),
    },
)
_CONTENT = text_or_list(_PART, "content should be a string or a list")
_CALL = record(
    _call,
    "struct ChatCompletionRequestToolCall",
    id=_STRING,
    type=_FUNCTION,
    function=Field(
        record(
            _pair,
            "struct ChatCompletionRequestFunctionCall",
            name=_STRING,
            arguments=_STRING,
        )
    ),
)
_MESSAGE = tagged(
    "ChatCompletionRequestMessage",
    "role",
    {
        "system": _message("system", content=Field(_CONTENT), name=_NAME),
        "user": _message("user", content=Field(_CONTENT), name=_NAME, task=maybe(any_value)),
        "assistant": _message(
            "assistant",
            content=maybe(_CONTENT),
            name=_NAME,
            tool_calls=maybe(list_of(_CALL)),
            prefix=maybe(boolean),
            reasoning_content=maybe(string),
        ),
        "tool": _message("tool", content=Field(_CONTENT), tool_call_id=_STRING),
        "latest_reminder": _message("latest_reminder", content=_STRING),
    },
)
_TOOL = record(
    _tool,
    "struct ChatCompletionTool",
    type=_FUNCTION,
    function=Field(
        record(
            ChatTool,
            "struct ChatCompletionFunctionDefinition",
            name=_STRING,
            description=maybe(string),
            parameters=maybe(any_value),
            strict=maybe(boolean),
        )
    ),
)
_FORMAT = tagged(
    "ChatCompletionResponseFormat",
    "type",
    {
        "json_object": record(_constant(AnswerFormat("json_object")), "struct JsonObject"),
        "json_schema": record(
            _json_schema,
            "struct JsonSchema",
            json_schema=Field(
                record(
                    _schema,
                    "struct ChatCompletionResponseFormatJsonSchema",
                    name=_NAME,
                    schema=Field(_with_path),
                    strict=maybe(boolean),
                )
            ),
        ),
        "regex": record(_regex, "struct Regex", regex=_STRING),
        "text": record(_constant(TEXT), "struct Text"),
    },
)
_THINKING = record(
    _first,
    "struct ChatCompletionThinking",
    type=Field(choice(*THINKING_TYPES)),
    budget_tokens=maybe(uint64),
)
_STREAM_OPTIONS = record(
    StreamOptions, "struct ChatCompletionStreamOptions", include_usage=maybe(boolean)
)


def _tool_choice(value: Any, path: str) -> Wish:
    if value == "none" or value == "auto" or value == "required":
        return value
    members = as_object(value)
    if members is None or "type" not in members:
        raise ShapeError("expected one of `none`, `auto`, `required` or a tool", path)
    labelled("type", choice("function"))(members, path)
    name = record(_first, "struct ChatCompletionToolChoiceFunction", name=_STRING)
    return NamedTool(labelled("function", name)(members, path))


read_chat = record(
    ChatBody,
    "struct ChatCompletionRequest",
    messages=Field(list_of(_MESSAGE)),
    model=_STRING,
    thinking=maybe(_THINKING),
    reasoning_effort=maybe(choice(*EFFORTS)),
    max_tokens=maybe(uint32),
    temperature=maybe(float32),
    top_p=maybe(float32),
    presence_penalty=maybe(float32),
    frequency_penalty=maybe(float32),
    stop=maybe(text_or_list(string, "expected a string or a list")),
    stream=maybe(boolean),
    stream_options=maybe(_STREAM_OPTIONS),
    response_format=maybe(_FORMAT),
    tools=maybe(list_of(_TOOL)),
    tool_choice=maybe(_tool_choice),
    logprobs=maybe(boolean),
    top_logprobs=maybe(uint8),
    seed=maybe(uint64),
    n=maybe(uint8),
    parallel_tool_calls=maybe(boolean),
)
