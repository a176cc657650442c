"""Tools and tool calls in prompts: the markup called DSML, in the two dialects of V4 and V4.1.

It does not know messages or turns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deepinfer.recipe.conversation import SpecialToken, ToolCall, ToolDefinition
from deepinfer.recipe.encode.writer import PromptWriter
from deepinfer.recipe.json_text import parse_object, spaced, spaced_short

# What the models were trained with (recipe.md, Appendix A); every byte counts. BLOCK, INVOKE and
# PARAMETER stand for the dialect's tag names.
_TOOLS_BEFORE = """\
## Tools

You have access to a set of tools to help answer the user's question. \
You can invoke tools by writing a "<｜DSML｜BLOCK>" block like the following:

<｜DSML｜BLOCK>
<｜DSML｜INVOKE name="$TOOL_NAME">
<｜DSML｜PARAMETER name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜PARAMETER>
...
</｜DSML｜INVOKE>
<｜DSML｜INVOKE name="$TOOL_NAME2">
...
</｜DSML｜INVOKE>
</｜DSML｜BLOCK>

String parameters should be specified as is and set `string="true"`. \
For all other types (numbers, booleans, arrays, objects), \
pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by <think>), \
you MUST output your complete reasoning inside <think>...</think> \
BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

"""
_TOOLS_AFTER = """\

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
_SPECIAL = {
    token.value: token
    for token in (SpecialToken.Dsml, SpecialToken.ThinkingStart, SpecialToken.ThinkingEnd)
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one version writes DSML.

    Attributes:
        block, invoke, parameter: names of the three tags, a leading blank included.
        empty_call: what a call without arguments holds.
        empty_schemas: what stands for the list of schemas if all tools are deferred.
        json: how values are written.
        tools_before: the section about tools, up to the list of schemas.
    """

    block: str
    invoke: str
    parameter: str
    empty_call: str
    empty_schemas: str
    json: Callable[[object], str]
    tools_before: tuple[str | SpecialToken, ...]

    def write_tools(self, writer: PromptWriter, tools: Sequence[ToolDefinition]) -> None:
        """The section that tells the model how to call and what; deferred tools are left out."""
        writer.template(self.tools_before)
        shown = [tool for tool in tools if not tool.defer_loading]
        writer.plain(self.schemas(shown) + "\n" if shown else self.empty_schemas)
        writer.plain(_TOOLS_AFTER)

    def schemas(self, tools: Sequence[ToolDefinition]) -> str:
        """One JSON object a line: name, description, parameters."""
        return "\n".join(
            self.json(
                {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.parameters,
                }
            )
            for tool in tools
        )

    def write_calls(self, writer: PromptWriter, calls: Sequence[ToolCall]) -> None:
        """A block of calls, as the model writes it."""
        writer.tag(self.block)
        writer.plain("\n")
        for call in calls:
            self._write_call(writer, call)
        writer.tag(self.block, closing=True)

    def open_block(self, writer: PromptWriter) -> None:
        """The beginning of a block of calls that the model has to go on with."""
        writer.plain("\n\n")
        writer.tag(self.block)
        writer.plain("\n")

    def _write_call(self, writer: PromptWriter, call: ToolCall) -> None:
        writer.tag(f'{self.invoke} name="{call.name}"')
        writer.plain("\n")
        arguments = parse_object(call.arguments)
        if arguments is None:
            arguments = {"arguments": call.arguments}
        for key, value in arguments.items():
            is_text = isinstance(value, str)
            writer.tag(f'{self.parameter} name="{key}" string="{"true" if is_text else "false"}"')
            writer.plain(value if is_text else self.json(value))
            writer.tag(self.parameter, closing=True)
            writer.plain("\n")
        if not arguments:
            writer.plain(self.empty_call)
        writer.tag(self.invoke, closing=True)
        writer.plain("\n")


def _pieces(tags: tuple[str, str, str]) -> tuple[str | SpecialToken, ...]:
    text = _TOOLS_BEFORE
    for name, tag in zip(("BLOCK", "INVOKE", "PARAMETER"), tags, strict=True):
        text = re.sub(rf"(?<=｜){name}\b", tag, text)
    pieces = re.split(f"({'|'.join(_SPECIAL)})", text)
    return tuple(_SPECIAL.get(piece, piece) for piece in pieces)


_TAGS_V4 = ("tool_calls", "invoke", "parameter")
_TAGS_V41 = (" calls", " invoke", " parameter")
V4 = Dialect(*_TAGS_V4, "", "", spaced_short, _pieces(_TAGS_V4))
V41 = Dialect(*_TAGS_V41, "\n", "\n", spaced, _pieces(_TAGS_V41))
