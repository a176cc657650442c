"""Tools of a request: their names, their schemas, and which of them the choice leaves.

It does not know how protocols declare tools.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from deepinfer.recipe.conversation import Message, SystemMessage, ToolChoice, ToolDefinition
from deepinfer.recipe.failures import ConversionError
from deepinfer.recipe.json_schema import check_json_schema
from deepinfer.recipe.json_text import compact
from deepinfer.recipe.options import OutputConstraint
from deepinfer.recipe.shapes import ShapeError, as_object
from deepinfer.recipe.strict_schema import StrictFault, closed

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_TOP = "function parameters"


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The choice of one tool by its name."""

    name: str


Wish: TypeAlias = Literal["none", "auto", "required"] | NamedTool


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """A tool as a request declares it; `path` is the place of its schema."""

    name: str
    description: str | None
    parameters: Any
    path: str
    strict: bool | None = None
    deferred: bool = False
    # Without parameters a tool takes an empty object, except in Messages, which requires them.
    parameters_optional: bool = True


@dataclass(frozen=True, slots=True)
class ToolSet:
    """The tools that the model may call, and whether it may or must."""

    tools: list[ToolDefinition]
    choice: ToolChoice

    def constraint(self) -> OutputConstraint | None:
        """What the output must match if there are tools."""
        if not self.tools:
            return None
        kind = "tool_call_required" if self.choice == "required" else "tool_call"
        return OutputConstraint(kind, compact([_as_function(tool) for tool in self.tools]))

    def check_strictness(self, has_format: bool) -> None:
        """Accept strict tools only among their like, and with no wish for a form of the answer.

        Raises:
            ConversionError: they have other company.
        """
        strict = {bool(tool.strict) for tool in self.tools}
        if len(strict) > 1:
            raise ConversionError(
                "Cannot use strict tool with non-strict tool in the same request", "tools"
            )
        if has_format and True in strict:
            raise ConversionError("response_format should not be used with tools", "tools")


def check_name(name: str, path: str) -> None:
    """Accept names that the model can be given.

    Raises:
        ConversionError: an empty name, or one with other characters.
    """
    check_not_empty(name, path)
    if not _NAME.fullmatch(name):
        raise ConversionError(
            f"Invalid '{path}': string does not match pattern. Expected a string that matches "
            f"the pattern '^{_NAME.pattern}$'.",
            path,
        )


def check_not_empty(text: str, path: str) -> None:
    """Accept any text but the empty one.

    Raises:
        ConversionError: it is empty.
    """
    if not text:
        raise ConversionError(
            f"Invalid '{path}': empty string. Expected a string with minimum length 1, but got "
            "an empty string instead.",
            path,
        )


def resolve_tools(
    declared: Sequence[DeclaredTool], wish: Wish, thinking: bool, *, any_given: bool = False
) -> ToolSet:
    """Check the tools and apply the choice (recipe.md 2.11).

    Args:
        declared: all tools of the request; names are checked already.
        wish: the choice.
        thinking: the mode; in it no call can be required.
        any_given: the request has tools, even if none of them is left; then a tool that is chosen
            by name must exist.

    Raises:
        ConversionError: a name stands twice, a schema is none or not strict though it should be,
            the chosen tool does not exist, or thinking mode meets a required call.
    """
    if wish == "none":
        return ToolSet([], "none")
    if not declared and not (any_given and isinstance(wish, NamedTool)):
        return ToolSet([], "auto")
    tools = _definitions(declared)
    if isinstance(wish, NamedTool):
        tools = [tool for tool in tools if tool.name == wish.name]
        if not tools:
            raise ConversionError(
                f"Invalid value for 'tool_call': no function named '{wish.name}' was specified in "
                "the 'tools' parameter.",
                "tool_choice",
            )
    if wish == "auto":
        return ToolSet(tools, "auto")
    if thinking:
        raise ConversionError("Thinking mode does not support this tool_choice", "tool_choice")
    return ToolSet(tools, "required")


def keep_known_tools(messages: Sequence[Message], tool_set: ToolSet) -> list[Message]:
    """Let system messages bring those tools only that the choice has left, as checked.

    A system message that brought tools and nothing else goes with the last of them.
    """
    known = {tool.name: tool for tool in tool_set.tools}
    kept: list[Message] = []
    for message in messages:
        tools = message.tools if isinstance(message, SystemMessage) else None
        if tools is None:
            kept.append(message)
            continue
        left = [known[tool.name] for tool in tools if tool.name in known]
        if left or message.content:
            images, places = message.image_sources, message.placeholders
            kept.append(SystemMessage(message.content, images, left, placeholders=places))
    return kept


def _definitions(declared: Sequence[DeclaredTool]) -> list[ToolDefinition]:
    tools: dict[str, ToolDefinition] = {}
    for tool in declared:
        if tool.name in tools:
            raise ConversionError("Tool names must be unique.", "tools")
        tools[tool.name] = _definition(tool)
    return list(tools.values())


def _definition(tool: DeclaredTool) -> ToolDefinition:
    parameters = _closed(tool) if tool.strict else _checked(tool)
    return ToolDefinition(tool.name, tool.description, parameters, tool.strict, tool.deferred)


def _closed(tool: DeclaredTool) -> Any:
    schema = {"type": "object"} if tool.parameters is None else tool.parameters
    try:
        return closed(schema, tool.path, _TOP, empty_allowed=True)
    except ShapeError as error:
        raise ConversionError(f"Invalid tool parameters schema : {error}", error.path) from None
    except StrictFault as fault:
        raise ConversionError(str(fault), fault.path) from None


def _checked(tool: DeclaredTool) -> Any:
    if tool.parameters is None and tool.parameters_optional:
        return {}
    try:
        check_json_schema(tool.parameters, tool.path)
    except ShapeError as error:
        raise ConversionError(
            f"Invalid schema for function '{tool.name}': {error}", error.path
        ) from None
    kind = (as_object(tool.parameters) or {}).get("type")
    if kind != "object":
        raise ConversionError(
            f"Invalid schema for function '{tool.name}': schema must be a JSON Schema of "
            f"'type: \"object\"', got 'type: {compact(kind)}'.",
            tool.path,
        )
    return tool.parameters


def _as_function(tool: ToolDefinition) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    entry: dict[str, Any] = {"type": "function", "function": function}
    if tool.defer_loading:
        entry["defer_loading"] = True
    return entry
