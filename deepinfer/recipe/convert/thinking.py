"""Whether a request wants thinking, how much, and what becomes of earlier reasoning.

It does not know where protocols keep these wishes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from deepinfer.recipe.conversation import (
    AssistantMessage,
    Message,
    ReasoningEffort,
    UserMessage,
)
from deepinfer.recipe.failures import ConversionError
from deepinfer.recipe.options import ReasoningContentBehavior

THINKING_TYPES: Final = ("adaptive", "enabled", "disabled")
# What requests may say, and what it means (recipe.md 2.8).
EFFORTS: Final[dict[str, ReasoningEffort | None]] = {
    "none": None,
    "minimal": "low",
    "low": "low",
    "medium": "high",
    "high": "high",
    "xhigh": "xhigh",
    "ultra": "max",
    "max": "max",
}
DEFAULT_EFFORT: Final[ReasoningEffort] = "high"
# A call id that tells that the call came without thinking (recipe.md 3.8): `call_00_ET_...`.
_NO_THOUGHT = re.compile(r"(?s)[\x00-\x7f]{6}(?:[\x00-\x7f]{2})?ET_")


def resolve_thinking(
    kind: str | None, effort: str | None, default: bool
) -> tuple[bool, ReasoningEffort | None]:
    """Thinking mode and effort.

    Args:
        kind: one of `THINKING_TYPES` or None.
        effort: a key of `EFFORTS` or None.
        default: the mode if neither says anything.

    Returns:
        The mode, and the effort in thinking mode or None outside of it. A `kind` decides over
        an effort; an effort other than `none` turns thinking on.
    """
    if kind is not None:
        thinking = kind != "disabled"
    elif effort is not None:
        thinking = effort != "none"
    else:
        thinking = default
    if not thinking:
        return False, None
    return True, (EFFORTS[effort] if effort is not None else None) or DEFAULT_EFFORT


def settle_reasoning(
    messages: Sequence[Message],
    thinking: bool,
    has_tools: bool,
    behavior: ReasoningContentBehavior,
    field: str,
) -> list[Message]:
    """Drop earlier reasoning outside thinking mode, and see to what is missing inside of it.

    Args:
        messages: reasoning as requested, None where the request has none.
        thinking: the mode.
        has_tools: whether the request brings tools; then every assistant message after the last
            user message needs its reasoning, else only those with calls.
        behavior: what to do about missing reasoning.
        field: what the protocol calls reasoning, for the error.

    Raises:
        ConversionError: needed reasoning is missing and `behavior` is to reject that.
    """
    if thinking and behavior is ReasoningContentBehavior.Reject:
        _require_reasoning(messages, has_tools, field)
    return [_settled(message, thinking) for message in messages]


def _require_reasoning(messages: Sequence[Message], has_tools: bool, field: str) -> None:
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return
        if isinstance(message, AssistantMessage) and message.reasoning_content is None:
            calls = message.tool_calls or []
            without = any(_NO_THOUGHT.match(call.id) for call in calls)
            if (calls or has_tools) and not without:
                raise ConversionError(
                    f"The `{field}` in the thinking mode must be passed back to the API."
                )


def _settled(message: Message, thinking: bool) -> Message:
    if not isinstance(message, AssistantMessage):
        return message
    reasoning = (message.reasoning_content or "") if thinking else None
    if reasoning == message.reasoning_content:
        return message
    return AssistantMessage(message.content, reasoning, message.tool_calls, message.prefix)
