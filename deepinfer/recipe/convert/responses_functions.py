"""Tools of the Responses protocol as functions: their names and what the model is told of them.

It does not know conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepinfer.recipe.convert.patch_tool import PATCH_DESCRIPTION, PATCH_PARAMETERS, PATCH_TOOL
from deepinfer.recipe.convert.responses_tools import (
    SEARCH_TOOL,
    CustomTool,
    FunctionTool,
    NamespaceTool,
    ResponsesTool,
    SearchTool,
    UnsupportedTool,
    WebSearchTool,
)
from deepinfer.recipe.convert.tools import DeclaredTool, check_name
from deepinfer.recipe.failures import ConversionError
from deepinfer.recipe.options import ModelVersion, WebSearchBehavior

_SEPARATORS = {ModelVersion.DeepseekV4Pro: "__", ModelVersion.DeepseekV41Flash: "::"}


class Namer:
    """Function names for the tools of namespaces; none is given twice.

    Args:
        version: the model, on which it depends how namespace and name are joined.
        tools: the declared tools; names of functions among them are not given.
    """

    def __init__(self, version: ModelVersion, tools: Sequence[ResponsesTool]) -> None:
        self._separator = _SEPARATORS[version]
        # Only V4.1 is told about the namespace in the description of each of its tools.
        self.describes = version is ModelVersion.DeepseekV41Flash
        self._taken = {tool.name for tool in tools if isinstance(tool, FunctionTool)}
        self._given: dict[str, tuple[str, str]] = {}

    def joined(self, namespace: str | None, local: str) -> str:
        """The name of a function in a namespace or in none."""
        return local if namespace is None else f"{namespace}{self._separator}{local}"

    def name(self, namespace: str, local: str) -> str:
        """The same, with a number behind it if that name is taken."""
        full = candidate = self.joined(namespace, local)
        number = 0
        while candidate in self._taken:
            number += 1
            candidate = f"{full}_{number}"
        self._taken.add(candidate)
        self._given[candidate] = (namespace, local)
        return candidate

    def names(self) -> dict[str, tuple[str, str]]:
        """Function name to (namespace, local name)."""
        return dict(self._given)


def usable(tools: Sequence[ResponsesTool], version: ModelVersion) -> list[ResponsesTool]:
    """The tools that this model can use: V4 cannot search for tools."""
    searches = version is ModelVersion.DeepseekV41Flash
    return [tool for tool in tools if searches or not isinstance(tool, SearchTool)]


def name_members(tools: Sequence[ResponsesTool], path: str, namer: Namer) -> None:
    """Name the tools of namespaces, without a look at custom tools and web search.

    Raises:
        ConversionError: a name that cannot be.
    """
    for i, tool in enumerate(tools):
        if isinstance(tool, NamespaceTool):
            _members(tool, f"{path}[{i}]", namer, deferred=False)
        elif isinstance(tool, FunctionTool):
            check_name(tool.name, f"{path}[{i}].name")


def declare(
    tools: Sequence[ResponsesTool],
    path: str,
    namer: Namer,
    web_search: WebSearchBehavior,
    *,
    deferred: bool = False,
) -> list[DeclaredTool]:
    """The functions that the model gets to see for these tools.

    Args:
        tools: as the request has them.
        path: their place in the request.
        namer: names the tools of namespaces.
        web_search: what to do about web search.
        deferred: the model learns of them later in the conversation.

    Raises:
        ConversionError: a name that cannot be, a custom tool other than the one for patches, or
            web search where that is to be rejected.
    """
    declared: list[DeclaredTool] = []
    for i, tool in enumerate(tools):
        place = f"{path}[{i}]"
        if isinstance(tool, NamespaceTool):
            declared += _members(tool, place, namer, deferred)
        elif isinstance(tool, WebSearchTool):
            check_web_search(web_search, place)
        elif not isinstance(tool, UnsupportedTool):
            function = _as_function(tool, place)
            if function is not None:
                declared.append(_declared(function, function.name, place, deferred))
    return declared


def check_web_search(behavior: WebSearchBehavior, path: str) -> None:
    """Accept web search, to leave it out, where it is not to be rejected.

    Raises:
        ConversionError: it is.
    """
    if behavior is WebSearchBehavior.Reject:
        raise ConversionError("Server tools are not supported", path)


def shown(tools: Sequence[ResponsesTool], path: str) -> list[dict[str, Any]]:
    """Found tools as the result of the search shows them to the model.

    Raises:
        ConversionError: one has a type that is not known here.
    """
    entries: list[dict[str, Any]] = []
    for tool in tools:
        if isinstance(tool, UnsupportedTool):
            raise ConversionError(
                f"{path}: the enum variant ResponsesTool::Unsupported cannot be serialized", path
            )
        if isinstance(tool, NamespaceTool):
            namespace = {"name": tool.name, "description": tool.description or ""}
            entries += [{**_entry(member), "namespace": namespace} for member in tool.tools]
        else:
            entries.append(_entry(tool))
    return entries


def repeated(tools: Sequence[ResponsesTool]) -> list[dict[str, Any]]:
    """Tools as responses repeat them: those of known types, with all their members."""
    return [_repeated(tool) for tool in tools if not isinstance(tool, UnsupportedTool)]


def _repeated(
    tool: FunctionTool | CustomTool | NamespaceTool | WebSearchTool | SearchTool,
) -> dict[str, Any]:
    if not isinstance(tool, NamespaceTool):
        return _entry(tool)
    return {
        "type": "namespace",
        "name": tool.name,
        "description": tool.description,
        "tools": [_entry(member) for member in tool.tools],
    }


def _members(tool: NamespaceTool, place: str, namer: Namer, deferred: bool) -> list[DeclaredTool]:
    check_name(tool.name, f"{place}.name")
    declared: list[DeclaredTool] = []
    seen: set[str] = set()
    for i, member in enumerate(tool.tools):
        where = f"{place}.tools[{i}]"
        if isinstance(member, CustomTool):
            raise ConversionError(
                "Currently custom tools are not allowed inside a namespace. Found custom tool "
                f"'{member.name}' in {where}.",
                where,
            )
        check_name(member.name, f"{where}.name")
        if member.name in seen:
            raise ConversionError("Tool names within a namespace must be unique.", place)
        seen.add(member.name)
        description = member.description
        if tool.description and namer.describes:
            description = f"{tool.description}\n{description or ''}"
        function = FunctionTool(member.name, description, member.parameters, member.strict)
        name = namer.name(tool.name, member.name)
        declared.append(_declared(function, name, where, deferred))
    return declared


def _as_function(tool: FunctionTool | CustomTool | SearchTool, place: str) -> FunctionTool | None:
    if isinstance(tool, FunctionTool):
        check_name(tool.name, f"{place}.name")
        return tool
    if isinstance(tool, SearchTool):
        if tool.execution != "client":
            return None
        return FunctionTool(SEARCH_TOOL, tool.description, tool.parameters, None)
    if tool.name != PATCH_TOOL:
        raise ConversionError(
            f"Unsupported custom tool: '{tool.name}'. Only '{PATCH_TOOL}' is supported.",
            f"{place}.name",
        )
    return FunctionTool(PATCH_TOOL, PATCH_DESCRIPTION, PATCH_PARAMETERS, None)


def _declared(
    function: FunctionTool,
    name: str,
    place: str,
    deferred: bool,
) -> DeclaredTool:
    return DeclaredTool(
        name,
        function.description,
        function.parameters,
        f"{place}.parameters",
        function.strict,
        deferred,
    )


def _entry(tool: FunctionTool | CustomTool | WebSearchTool | SearchTool) -> dict[str, Any]:
    if isinstance(tool, WebSearchTool):
        return tool.declaration
    if isinstance(tool, CustomTool):
        return {"type": "custom", "name": tool.name}
    if isinstance(tool, SearchTool):
        return {
            "type": SEARCH_TOOL,
            "execution": tool.execution,
            "description": tool.description,
            "parameters": tool.parameters,
        }
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
