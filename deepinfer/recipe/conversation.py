"""A conversation: what requests of three protocols become and what both prompts are made of.

It does not know how it is written as a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from deepinfer.recipe.checks import (
    check_choice,
    check_flag,
    check_optional_text,
    checked_items,
)
from deepinfer.recipe.image_source import (
    BytesImageSource,
    DataUrlImageSource,
    ImageDetail,
    ImageSource,
    ImageSourceKind,
    UrlImageSource,
)
from deepinfer.recipe.json_text import checked_copy
from deepinfer.recipe.messages import (
    AssistantMessage,
    LatestReminderMessage,
    Message,
    Role,
    SystemMessage,
    Task,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UserMessage,
)
from deepinfer.recipe.special_tokens import SpecialToken, SpecialTokens

__all__ = [
    "AssistantMessage",
    "BytesImageSource",
    "Conversation",
    "DataUrlImageSource",
    "ImageDetail",
    "ImageSource",
    "ImageSourceKind",
    "LatestReminderMessage",
    "Message",
    "ReasoningEffort",
    "RenderedPrompt",
    "ResponseFormat",
    "Role",
    "SpecialToken",
    "SpecialTokens",
    "SystemMessage",
    "Task",
    "ToolCall",
    "ToolChoice",
    "ToolDefinition",
    "ToolMessage",
    "UrlImageSource",
    "UserMessage",
]

ToolChoice: TypeAlias = Literal["auto", "none", "required"]
ReasoningEffort: TypeAlias = Literal["low", "high", "xhigh", "max"]
ResponseFormat: TypeAlias = Literal["text", "json_object", "json_schema", "regex"]
MOST_EFFORT = 100


class Conversation:
    """Messages, tools and how the answer is wanted.

    Args:
        messages: in the order they were said.
        thinking_mode: the model thinks before it answers.
        tools: what it may call.
        tool_choice: `none` hides the tools, `required` opens a block of calls for the model.
        reasoning_effort: how much thought; None means `high`. An integer of 1..100 is the budget
            that V4.1 is told (not in the wheel; V4 has no such budget and refuses it).
        response_format: `text` or `json_object`.
        response_schema: JSON Schema of the answer; makes the format `json_schema`.
        response_regex: regular expression of the answer; makes the format `regex`.

    Raises:
        ValueError: an unknown choice, an effort outside 1..100, or more than one of schema,
            regular expression and `json_object`.
        TypeError: an argument of another type.
    """

    __slots__ = (
        "_messages",
        "_reasoning_effort",
        "_response_format",
        "_response_regex",
        "_response_schema",
        "_thinking_mode",
        "_tool_choice",
        "_tools",
    )

    def __init__(
        self,
        messages: Sequence[Message] | None = None,
        *,
        thinking_mode: bool = True,
        tools: Sequence[ToolDefinition] | None = None,
        tool_choice: ToolChoice = "auto",
        reasoning_effort: ReasoningEffort | int | None = None,
        response_format: Literal["text", "json_object"] = "text",
        response_schema: Any | None = None,
        response_regex: str | None = None,
    ) -> None:
        self._messages = checked_items("messages", messages, Message)
        check_flag("thinking_mode", thinking_mode)
        self._thinking_mode = thinking_mode
        self._tools = checked_items("tools", tools, ToolDefinition)
        check_choice("tool_choice", tool_choice, get_args(ToolChoice))
        self._tool_choice: ToolChoice = tool_choice
        _check_effort(reasoning_effort)
        self._reasoning_effort: ReasoningEffort | int | None = reasoning_effort
        check_choice("response_format", response_format, ("text", "json_object"))
        check_optional_text("response_regex", response_regex)
        self._response_schema = checked_copy(response_schema)
        self._response_regex = response_regex
        self._response_format: ResponseFormat = _answer_format(
            response_format, response_schema, response_regex
        )

    @property
    def messages(self) -> list[Message]:
        """Messages in the order they were said."""
        return list(self._messages)

    @property
    def thinking_mode(self) -> bool:
        """Whether the model thinks before it answers."""
        return self._thinking_mode

    @property
    def tools(self) -> list[ToolDefinition]:
        """What the model may call."""
        return list(self._tools)

    @property
    def tool_choice(self) -> ToolChoice:
        """Whether it may or must call."""
        return self._tool_choice

    @property
    def reasoning_effort(self) -> ReasoningEffort | int | None:
        """How much thought; None means the default, which is `high`."""
        return self._reasoning_effort

    @property
    def response_format(self) -> ResponseFormat:
        """Form of the answer; whoever runs the model enforces it."""
        return self._response_format

    @property
    def response_schema(self) -> Any | None:
        """JSON Schema of a `json_schema` answer. Not to be modified."""
        return self._response_schema

    @property
    def response_regex(self) -> str | None:
        """Regular expression of a `regex` answer."""
        return self._response_regex

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Conversation) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return (
            f"Conversation(messages={len(self._messages)}, thinking_mode={self._thinking_mode}, "
            f"tools={len(self._tools)}, tool_choice={self._tool_choice!r}, "
            f"reasoning_effort={self._reasoning_effort!r}, "
            f"response_format={self._response_format!r})"
        )


def _check_effort(effort: object) -> None:
    if effort is None:
        return
    if isinstance(effort, int) and not isinstance(effort, bool):
        if not 1 <= effort <= MOST_EFFORT:
            raise ValueError(f"invalid reasoning_effort {effort}; expected 1 to {MOST_EFFORT}")
    else:
        check_choice("reasoning_effort", effort, get_args(ReasoningEffort))


def _answer_format(asked: str, schema: object, regex: str | None) -> ResponseFormat:
    if schema is not None and regex is not None:
        raise ValueError("response_schema and response_regex cannot be combined")
    if asked == "json_object":
        if schema is not None or regex is not None:
            raise ValueError(
                'response_format "json_object" cannot be combined with response_schema '
                "or response_regex"
            )
        return "json_object"
    if schema is not None:
        return "json_schema"
    return "text" if regex is None else "regex"


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt as text.

    Attributes:
        prompt: the text.
        special_ranges: ascending disjoint half-open ranges of code points of `prompt`; each holds
            the spelling of one special token. All else is plain text, which is tokenised without
            the added vocabulary.
        image_sources: images in the order of their placeholders.
    """

    prompt: str
    special_ranges: list[tuple[int, int]]
    image_sources: list[ImageSource]

    def pieces(self) -> list[tuple[str, bool]]:
        """The prompt in pieces: stretches of text, and special tokens (True). None is empty."""
        found: list[tuple[str, bool]] = []
        end = 0
        for start, stop in [*self.special_ranges, (len(self.prompt), len(self.prompt))]:
            if end < start:
                found.append((self.prompt[end:start], False))
            if start < stop:
                found.append((self.prompt[start:stop], True))
            end = stop
        return found

    def __repr__(self) -> str:
        return (
            f"RenderedPrompt(prompt=<{len(self.prompt)} characters>, "
            f"image_sources={len(self.image_sources)})"
        )
