"""Tools of the Responses protocol and how they are read.

It checks shapes only; `responses_functions` makes functions of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from deepinfer.recipe.convert.tools import NamedTool, Wish
from deepinfer.recipe.shapes import (
    Field,
    Reader,
    ShapeError,
    any_value,
    as_object,
    boolean,
    choice,
    list_of,
    maybe,
    record,
    string,
    tagged,
)

EXECUTIONS = ("client", "server")
SEARCH_TOOL = "tool_search"


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function that the client runs."""

    name: str
    description: str | None
    parameters: Any
    strict: bool | None


@dataclass(frozen=True, slots=True)
class CustomTool:
    """A tool with free text as its input."""

    name: str


@dataclass(frozen=True, slots=True)
class NamespaceTool:
    """A named group of tools."""

    name: str
    description: str | None
    tools: list[FunctionTool | CustomTool]


@dataclass(frozen=True, slots=True)
class WebSearchTool:
    """Web search, which the server would run; `declaration` is what to show of it."""

    declaration: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SearchTool:
    """A search for further tools."""

    execution: str | None
    description: str | None
    parameters: Any


@dataclass(frozen=True, slots=True)
class UnsupportedTool:
    """A tool of any other type, which is left out."""


ResponsesTool: TypeAlias = (
    FunctionTool | CustomTool | NamespaceTool | WebSearchTool | SearchTool | UnsupportedTool
)
ToolWish: TypeAlias = Wish | Literal["web_search"]


@dataclass(frozen=True, slots=True)
class ToolChoiceWish:
    """A choice, and how responses repeat it."""

    wish: ToolWish
    repeated: Any


def _members_as_they_are(**members: Any) -> dict[str, Any]:
    return members


def _web_search(kind: str) -> Reader[WebSearchTool]:
    def make(**members: Any) -> WebSearchTool:
        return WebSearchTool({"type": kind, **members})

    return record(
        make,
        "struct ResponsesWebSearch",
        search_context_size=maybe(choice("low", "medium", "high")),
        user_location=maybe(
            record(
                _members_as_they_are,
                "struct ResponsesUserLocation",
                **dict.fromkeys(("city", "country", "region", "timezone"), maybe(string)),
            )
        ),
    )


_STRING = Field(string)
_FUNCTION = record(
    FunctionTool,
    "struct ResponsesFunction",
    name=_STRING,
    description=maybe(string),
    parameters=maybe(any_value),
    strict=maybe(boolean),
)
_CUSTOM = record(CustomTool, "struct ResponsesCustomTool", name=_STRING)
_MEMBER: Reader[FunctionTool | CustomTool] = tagged(
    "ResponsesNamespaceTool", "type", {"function": _FUNCTION, "custom": _CUSTOM}
)
_TOOLS: dict[str, Reader[ResponsesTool]] = {
    "function": _FUNCTION,
    "custom": _CUSTOM,
    "namespace": record(
        NamespaceTool,
        "struct ResponsesNamespace",
        name=_STRING,
        description=maybe(string),
        tools=Field(list_of(_MEMBER)),
    ),
    "web_search": _web_search("web_search"),
    "web_search_2025_08_26": _web_search("web_search_2025_08_26"),
    SEARCH_TOOL: record(
        SearchTool,
        "struct ResponsesToolSearch",
        execution=maybe(choice(*EXECUTIONS)),
        description=maybe(string),
        parameters=maybe(any_value),
    ),
}


class _Tools(dict[str, Reader[ResponsesTool]]):
    """The known types, and one reader for all others."""

    def __contains__(self, kind: object) -> bool:
        return True

    def __missing__(self, kind: str) -> Reader[ResponsesTool]:
        return lambda value, path: UnsupportedTool()


read_tools = list_of(tagged("ResponsesTool", "type", _Tools(_TOOLS)))
_NAMED = record(NamedTool, "struct ResponsesToolChoiceTool", name=_STRING)
_CHOICES: dict[str, Reader[ToolWish]] = {
    "function": _NAMED,
    "web_search": lambda value, path: "web_search",
    "web_search_2025_08_26": lambda value, path: "web_search",
    "custom": _NAMED,
}
_CHOICE = tagged("ResponsesToolChoice", "type", _CHOICES)


def read_tool_choice(value: Any, path: str) -> ToolChoiceWish:
    """Read a choice: a word, or an object with a type."""
    if value == "none" or value == "auto" or value == "required":
        return ToolChoiceWish(value, value)
    members = as_object(value)
    if members is None or "type" not in members:
        raise ShapeError("expected one of `none`, `auto`, `required` or a tool choice object", path)
    wish = _CHOICE(members, path)
    named = {"name": wish.name} if isinstance(wish, NamedTool) else {}
    return ToolChoiceWish(wish, {"type": members["type"], **named})
