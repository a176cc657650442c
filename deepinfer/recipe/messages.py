"""The messages of a conversation, and the tools and tool calls in them.

It does not know how a message is written in a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from deepinfer.recipe.checks import (
    check_choice,
    check_flag,
    check_optional_text,
    check_text,
    checked_items,
)
from deepinfer.recipe.image_source import ImageSource
from deepinfer.recipe.json_text import checked_copy
from deepinfer.recipe.special_tokens import SpecialToken

Role: TypeAlias = Literal["system", "user", "assistant", "tool", "latest_reminder"]
# Quick instructions, which the model answers instead of a reply (recipe.md 2.12).
Task: TypeAlias = Literal["action", "query", "authority", "domain", "title", "read_url"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of an earlier turn.

    Attributes:
        id: what the tool message with its result refers to.
        name: the tool.
        arguments: text of a JSON object, not checked here; any other text is shown to the model
            as one parameter called `arguments`.
    """

    id: str
    name: str
    arguments: str

    def __post_init__(self) -> None:
        check_text("id", self.id)
        check_text("name", self.name)
        check_text("arguments", self.arguments)


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool that the model may call.

    Attributes:
        name: the tool.
        description: what it does; None is shown as an empty text.
        parameters: JSON Schema of its arguments. Copied at construction, not to be modified.
        strict: handed on; conversion normalises the schema of a strict tool, construction does
            not.
        defer_loading: leave it out of the head of the prompt.

    Raises:
        TypeError, ValueError, OverflowError: `parameters` holds what JSON cannot
            (`json_text.checked_copy`).
    """

    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None
    defer_loading: bool = False

    def __post_init__(self) -> None:
        check_text("name", self.name)
        check_optional_text("description", self.description)
        object.__setattr__(self, "parameters", checked_copy(self.parameters))
        if self.strict is not None:
            check_flag("strict", self.strict)
        check_flag("defer_loading", self.defer_loading)


class Message:
    """A message of a conversation. Made as one of its five subclasses.

    A property that a role does not have reads as None, False or an empty list.
    """

    __slots__ = ("_content",)
    _role: Role
    _content: str

    def __init__(self) -> None:
        raise TypeError("a Message is made as one of its subclasses")

    @property
    def role(self) -> Role:
        """Who speaks."""
        return self._role

    @property
    def content(self) -> str:
        """The text."""
        return self._content

    @property
    def reasoning_content(self) -> str | None:
        """What an assistant message was thought out with."""
        return None

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        """Calls of an assistant message."""
        return None

    @property
    def tool_call_id(self) -> str | None:
        """The call that a tool message answers."""
        return None

    @property
    def image_sources(self) -> list[ImageSource]:
        """Images, in the order of their placeholders in the text."""
        return []

    @property
    def prefix(self) -> bool:
        """Whether the model goes on writing this assistant message."""
        return False

    @property
    def placeholders(self) -> list[tuple[int, int]]:
        """Where in `content` images stand: half-open ranges, at most one for each image."""
        return []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Message) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((self._role, self._content))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._content!r})"

    def _key(self) -> tuple[object, ...]:
        return (self._role, self._content)


class _IllustratedMessage(Message):
    """A message whose text may hold images."""

    __slots__ = ("_image_sources", "_placeholders")

    def _fill(
        self,
        content: str,
        sources: Sequence[ImageSource] | None,
        image_token: str | None,
        placeholders: Sequence[tuple[int, int]] | None,
    ) -> None:
        check_text("content", content)
        check_optional_text("image_token", image_token)
        if image_token == "":
            raise ValueError("image_token must not be empty")
        self._content = content
        self._image_sources = checked_items("image_sources", sources, ImageSource)
        if placeholders is None:
            token = SpecialToken.Image.value if image_token is None else image_token
            self._placeholders = _find(content, token, len(self._image_sources))
        elif image_token is not None:
            raise ValueError("give image_token to search for, or placeholders, not both")
        else:
            self._placeholders = [(start, end) for start, end in placeholders]
            _check_places(self._placeholders, len(content), len(self._image_sources))

    @property
    def image_sources(self) -> list[ImageSource]:
        """Images, in the order of their placeholders in the text."""
        return list(self._image_sources)

    @property
    def placeholders(self) -> list[tuple[int, int]]:
        """Where in `content` images stand: half-open ranges, at most one for each image."""
        return list(self._placeholders)

    def _key(self) -> tuple[object, ...]:
        return (self._role, self._content, self._image_sources, self._placeholders)


def _find(content: str, token: str, most: int) -> list[tuple[int, int]]:
    """The first `most` places of `token`, none overlapping another."""
    found: list[tuple[int, int]] = []
    end = 0
    while len(found) < most and (start := content.find(token, end)) >= 0:
        end = start + len(token)
        found.append((start, end))
    return found


def _check_places(places: list[tuple[int, int]], size: int, most: int) -> None:
    if len(places) > most:
        raise ValueError(f"{len(places)} placeholders for {most} images")
    last = 0
    for start, end in places:
        if not last <= start <= end <= size:
            raise ValueError(
                f"placeholder ({start}, {end}) is not an ascending range of code points within "
                f"the {size} of the content"
            )
        last = end


class SystemMessage(_IllustratedMessage):
    """Instructions; V4.1 keeps them in their place, V4 moves them to the head.

    Args:
        content: the text; see `UserMessage` for images.
        image_sources: its images.
        tools: tools that the model learns of here (V4.1 only).
        image_token: see `UserMessage`.
        placeholders: see `UserMessage`.
    """

    __slots__ = ("_tools",)
    _role = "system"

    def __init__(
        self,
        content: str,
        image_sources: Sequence[ImageSource] | None = None,
        tools: Sequence[ToolDefinition] | None = None,
        *,
        image_token: str | None = None,
        placeholders: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self._fill(content, image_sources, image_token, placeholders)
        self._tools = None if tools is None else checked_items("tools", tools, ToolDefinition)

    @property
    def tools(self) -> list[ToolDefinition] | None:
        """Tools that the model learns of here."""
        return None if self._tools is None else list(self._tools)

    def _key(self) -> tuple[object, ...]:
        return (*super()._key(), self._tools)


class UserMessage(_IllustratedMessage):
    """What a user says.

    Args:
        content: the text. The first places of `image_token` in it, one for each image, stand for
            the images; all others are text. Fewer places than images are no error: the images
            stay with the message and the prompt has fewer placeholders.
        image_sources: its images.
        image_token: spelling of placeholders in `content`; None means the default of
            `SpecialToken.Image`.
        placeholders: where in `content` the images stand, instead of a search for `image_token`:
            half-open ranges of code points, ascending, at most one for each image; not in the
            wheel.
        task: a quick instruction; not in the wheel.

    Raises:
        ValueError: `image_token` is empty, placeholders are no such ranges or come with
            `image_token`, or there is no such task.
    """

    __slots__ = ("_task",)
    _role = "user"

    def __init__(
        self,
        content: str,
        image_sources: Sequence[ImageSource] | None = None,
        *,
        image_token: str | None = None,
        placeholders: Sequence[tuple[int, int]] | None = None,
        task: Task | None = None,
    ) -> None:
        self._fill(content, image_sources, image_token, placeholders)
        if task is not None:
            check_choice("task", task, get_args(Task))
        self._task: Task | None = task

    @property
    def task(self) -> Task | None:
        """The quick instruction that this message ends with."""
        return self._task

    def _key(self) -> tuple[object, ...]:
        return (*super()._key(), self._task)


class AssistantMessage(Message):
    """What the model said.

    Args:
        content: the answer.
        reasoning_content: what was thought before it.
        tool_calls: calls after it.
        prefix: the model goes on writing it; has a meaning in the last message only.
    """

    __slots__ = ("_prefix", "_reasoning_content", "_tool_calls")
    _role = "assistant"

    def __init__(
        self,
        content: str,
        reasoning_content: str | None = None,
        tool_calls: Sequence[ToolCall] | None = None,
        prefix: bool = False,
    ) -> None:
        check_text("content", content)
        check_optional_text("reasoning_content", reasoning_content)
        check_flag("prefix", prefix)
        self._content = content
        self._reasoning_content = reasoning_content
        self._tool_calls = (
            None if tool_calls is None else checked_items("tool_calls", tool_calls, ToolCall)
        )
        self._prefix = prefix

    @property
    def reasoning_content(self) -> str | None:
        """What was thought before the answer."""
        return self._reasoning_content

    @property
    def tool_calls(self) -> list[ToolCall] | None:
        """Calls after the answer."""
        return None if self._tool_calls is None else list(self._tool_calls)

    @property
    def prefix(self) -> bool:
        """Whether the model goes on writing it."""
        return self._prefix

    def _key(self) -> tuple[object, ...]:
        return (*super()._key(), self._reasoning_content, self._tool_calls, self._prefix)


class ToolMessage(_IllustratedMessage):
    """The result of a tool call.

    Args:
        content: the text; see `UserMessage` for images.
        tool_call_id: the call that it answers.
        image_sources: its images.
        image_token: see `UserMessage`.
        placeholders: see `UserMessage`.
    """

    __slots__ = ("_tool_call_id",)
    _role = "tool"

    def __init__(
        self,
        content: str,
        tool_call_id: str | None = None,
        image_sources: Sequence[ImageSource] | None = None,
        *,
        image_token: str | None = None,
        placeholders: Sequence[tuple[int, int]] | None = None,
    ) -> None:
        self._fill(content, image_sources, image_token, placeholders)
        check_optional_text("tool_call_id", tool_call_id)
        self._tool_call_id = tool_call_id

    @property
    def tool_call_id(self) -> str | None:
        """The call that it answers."""
        return self._tool_call_id

    def _key(self) -> tuple[object, ...]:
        return (*super()._key(), self._tool_call_id)


class LatestReminderMessage(Message):
    """Instructions right before the answer.

    Args:
        content: the text.
    """

    __slots__ = ()
    _role = "latest_reminder"

    def __init__(self, content: str) -> None:
        check_text("content", content)
        self._content = content
