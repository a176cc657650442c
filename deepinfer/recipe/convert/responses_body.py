"""The body of a Responses request: its parts and how they are read (recipe.md 4.10).

It checks shapes only; what the parts ask for is checked by `responses`. Tools are read by
`responses_tools`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from deepinfer.recipe.convert.formats import TEXT, AnswerFormat
from deepinfer.recipe.convert.responses_tools import (
    EXECUTIONS,
    SEARCH_TOOL,
    ResponsesTool,
    ToolChoiceWish,
    read_tool_choice,
    read_tools,
)
from deepinfer.recipe.convert.thinking import EFFORTS
from deepinfer.recipe.json_text import compact
from deepinfer.recipe.shapes import (
    Field,
    Reader,
    ShapeError,
    as_list,
    as_object,
    boolean,
    choice,
    float32,
    list_of,
    maybe,
    optional,
    record,
    string,
    tagged,
    text_or_list,
    uint8,
    uint32,
    variant_tag,
    wrong_type,
)


@dataclass(frozen=True, slots=True)
class TextPart:
    """A text in a list of parts."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image in a list of parts."""

    image_url: str | None
    file_id: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file in a list of parts, which no model here reads."""


Part: TypeAlias = TextPart | ImagePart | FilePart


@dataclass(frozen=True, slots=True)
class MessageItem:
    """A message of any role."""

    role: str
    content: str | list[Part]


@dataclass(frozen=True, slots=True)
class ReasoningItem:
    """What an answer was thought out with."""

    texts: list[str]


@dataclass(frozen=True, slots=True)
class CallItem:
    """A call of a tool of any kind."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    is_search: bool = False


@dataclass(frozen=True, slots=True)
class OutputItem:
    """The result of a call."""

    call_id: str | None
    output: str | list[Part]
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class FoundToolsItem:
    """The result of a search for tools."""

    call_id: str
    tools: list[ResponsesTool]


Item: TypeAlias = MessageItem | ReasoningItem | CallItem | OutputItem | FoundToolsItem


@dataclass(frozen=True, slots=True)
class Reasoning:
    """How much to think, and the summary of it that is wanted, which is only repeated."""

    effort: str | None = None
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class TextWish:
    """The form of the answer, and how responses repeat it; its length is only repeated."""

    format: AnswerFormat = TEXT
    repeated: dict[str, Any] = field(default_factory=lambda: {"type": "text"})
    verbosity: str | None = None


@dataclass(frozen=True, slots=True)
class ResponsesBody:
    """A whole request. None stands for what is missing.

    An item that conversion skips is None.
    """

    model: str
    input: str | list[Item | None] | None
    instructions: str | None
    reasoning: Reasoning
    text: TextWish
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_logprobs: int | None
    stream: bool | None
    tools: list[ResponsesTool] | None
    tool_choice: ToolChoiceWish | None
    user: str | None


def _call(call_id: str, name: str, arguments: str, namespace: str | None) -> CallItem:
    return CallItem(call_id, name, arguments, namespace)


def _custom_call(call_id: str, name: str, input: str) -> CallItem:
    return CallItem(call_id, name, compact({"input": input}))


def _search_call(call_id: str, execution: str | None, arguments: dict[str, Any]) -> CallItem:
    return CallItem(call_id, SEARCH_TOOL, compact(arguments), is_search=True)


def _output(call_id: str | None, output: str | list[Part]) -> OutputItem:
    return OutputItem(call_id, output)


def _custom_output(call_id: str, output: str | list[Part] | None) -> OutputItem:
    return OutputItem(call_id, output or "", is_custom=True)


def _found(call_id: str, execution: str | None, tools: list[ResponsesTool]) -> FoundToolsItem:
    return FoundToolsItem(call_id, tools)


def _reasoning(content: list[str] | None, encrypted_content: str | None) -> ReasoningItem:
    return ReasoningItem(content or [])


def _object(value: Any, path: str) -> dict[str, Any]:
    members = as_object(value)
    return wrong_type(value, "a map", path) if members is None else members


def _text(text: str) -> str:
    return text


def _body(reasoning: Reasoning | None, text: TextWish | None, **values: Any) -> ResponsesBody:
    return ResponsesBody(reasoning=reasoning or Reasoning(), text=text or TextWish(), **values)


def _reasoning_wish(
    effort: str | None, summary: str | None, generate_summary: str | None
) -> Reasoning:
    return Reasoning(effort, summary or generate_summary)


def _text_wish(format: TextWish, verbosity: str | None) -> TextWish:
    return TextWish(format.format, format.repeated, verbosity)


def _json_object() -> TextWish:
    return TextWish(AnswerFormat("json_object"), {"type": "json_object"})


def _json_schema(
    name: str, schema: tuple[Any, str], strict: bool | None, description: str | None
) -> TextWish:
    value, path = schema
    repeated = {
        "type": "json_schema",
        "name": name,
        "schema": value,
        "description": description,
        "strict": strict,
    }
    return TextWish(AnswerFormat("json_schema", value, strict, path=path), repeated)


def _with_path(value: Any, path: str) -> tuple[Any, str]:
    return value, path


_STRING = Field(string)
_TEXT_PART = record(TextPart, "struct TextBlock", text=_STRING)
_OTHER_PARTS: dict[str, Reader[Part]] = {
    "input_image": record(
        ImagePart,
        "struct ImageBlock",
        image_url=maybe(string),
        file_id=maybe(string),
        detail=maybe(choice("low", "high", "original", "auto")),
    ),
    "input_file": record(FilePart, "struct FileBlock"),
}
_CONTENT: Reader[str | list[Part]] = text_or_list(
    tagged(
        "ResponsesContentBlock",
        "type",
        {"input_text": _TEXT_PART, "output_text": _TEXT_PART, **_OTHER_PARTS},
    ),
    "content should be a string or a list of content blocks",
)
_OUTPUT: Reader[str | list[Part]] = text_or_list(
    tagged("ResponsesToolCallOutputItem", "type", {"input_text": _TEXT_PART, **_OTHER_PARTS}),
    "output should be a string or a list of output content parts",
)
_MESSAGE = record(
    MessageItem,
    "struct ResponsesMessage",
    role=Field(choice("user", "assistant", "system", "developer")),
    content=Field(_CONTENT),
)
_EXECUTION = maybe(choice(*EXECUTIONS))
_ITEMS: dict[str, Reader[Item]] = {
    "message": _MESSAGE,
    "reasoning": record(
        _reasoning,
        "struct ResponsesReasoning",
        content=maybe(list_of(record(_text, "struct ResponsesReasoningContent", text=_STRING))),
        encrypted_content=maybe(string),
    ),
    # A call of the server's own tool: like an empty thought it adds nothing and may stand
    # anywhere but between a call and its output.
    "web_search_call": lambda value, path: ReasoningItem([]),
    "function_call": record(
        _call,
        "struct ResponsesFunctionCall",
        arguments=_STRING,
        call_id=_STRING,
        name=_STRING,
        namespace=maybe(string),
    ),
    "function_call_output": record(
        _output, "struct ResponsesFunctionCallOutput", call_id=maybe(string), output=Field(_OUTPUT)
    ),
    "custom_tool_call": record(
        _custom_call, "struct ResponsesCustomToolCall", call_id=_STRING, name=_STRING, input=_STRING
    ),
    "custom_tool_call_output": record(
        _custom_output,
        "struct ResponsesCustomToolCallOutput",
        call_id=_STRING,
        output=maybe(_OUTPUT),
    ),
    "tool_search_call": record(
        _search_call,
        "struct ResponsesToolSearchCall",
        call_id=_STRING,
        execution=_EXECUTION,
        arguments=Field(_object),
    ),
    "tool_search_output": record(
        _found,
        "struct ResponsesToolSearchOutput",
        call_id=_STRING,
        execution=_EXECUTION,
        tools=Field(read_tools),
    ),
}


def _item(value: Any, path: str) -> Item | None:
    members = as_object(value)
    if members is None or not ("type" in members or "role" in members):
        raise ShapeError("invalid input item", path)
    kind = variant_tag(members, "type", path) if "type" in members else "message"
    return _ITEMS[kind](members, path) if kind in _ITEMS else None


def _input(value: Any, path: str) -> str | list[Item | None]:
    if isinstance(value, str):
        return value
    if as_list(value) is None:
        raise ShapeError("input should be a string or a list of input items", path)
    return list_of(_item)(value, path)


_SUMMARY = maybe(choice("auto", "concise", "detailed"))
_REASONING = record(
    _reasoning_wish,
    "struct ResponsesReasoningConfig",
    effort=maybe(choice(*EFFORTS)),
    summary=_SUMMARY,
    generate_summary=_SUMMARY,
)
_FORMAT = tagged(
    "ResponsesTextFormat",
    "type",
    {
        "text": record(TextWish, "struct Text"),
        "json_schema": record(
            _json_schema,
            "struct JsonSchema",
            name=_STRING,
            schema=Field(_with_path),
            strict=maybe(boolean),
            description=maybe(string),
        ),
        "json_object": record(_json_object, "struct JsonObject"),
    },
)
_TEXT = record(
    _text_wish,
    "struct ResponsesTextConfig",
    format=Field(_FORMAT, TextWish()),
    verbosity=maybe(choice("low", "medium", "high")),
)

read_responses = record(
    _body,
    "struct ResponsesRequest",
    model=_STRING,
    input=maybe(_input),
    instructions=maybe(string),
    reasoning=maybe(_REASONING),
    max_output_tokens=maybe(uint32),
    temperature=maybe(float32),
    top_p=maybe(float32),
    top_logprobs=maybe(uint8),
    stream=maybe(boolean),
    text=maybe(_TEXT),
    tools=maybe(read_tools),
    tool_choice=maybe(read_tool_choice),
    user=Field(optional(string), None),
)
