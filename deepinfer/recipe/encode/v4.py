"""Prompts of V4 (recipe.md 2.3).

It does not know how text becomes token ids.
"""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer.recipe.conversation import (
    AssistantMessage,
    Conversation,
    LatestReminderMessage,
    Message,
    SpecialToken,
    SystemMessage,
    ToolMessage,
    UserMessage,
)
from deepinfer.recipe.encode.common import (
    PromptEncoding,
    task_of,
    tools_are_shown,
    write_answer_start,
    write_task,
    write_tool_result,
)
from deepinfer.recipe.encode.dsml import V4
from deepinfer.recipe.encode.head import answer_form_v4, effort_v4
from deepinfer.recipe.encode.writer import PromptWriter


class DeepseekV4Encoding(PromptEncoding):
    """Writes conversations as prompts of V4, and as token ids with a tokenizer attached."""

    def _write(self, writer: PromptWriter, conversation: Conversation) -> None:
        messages = conversation.messages
        _write_head(writer, conversation, messages)
        units = _units([item for item in messages if not isinstance(item, SystemMessage)])
        _write_body(writer, conversation, units)
        last = units[-1][-1] if units else None
        if last is None or not (last.prefix or task_of(last)):
            write_answer_start(writer, thinking=conversation.thinking_mode)
        if tools_are_shown(conversation) and conversation.tool_choice == "required":
            V4.open_block(writer)


def _write_head(
    writer: PromptWriter, conversation: Conversation, messages: Sequence[Message]
) -> None:
    writer.plain(effort_v4(conversation))
    systems = [item for item in messages if isinstance(item, SystemMessage) and item.content]
    _write_joined(writer, systems)
    if tools_are_shown(conversation):
        writer.plain("\n\n")
        V4.write_tools(writer, conversation.tools)
    if form := answer_form_v4(conversation):
        writer.plain("\n\n" + form)


def _write_joined(writer: PromptWriter, messages: Sequence[Message]) -> None:
    """Texts with an empty line between them; empty texts leave no trace."""
    written = False
    for message in messages:
        if message.content and written:
            writer.plain("\n\n")
        writer.content(message)
        written = written or bool(message.content)


def _units(messages: Sequence[Message]) -> list[list[Message]]:
    """Users' messages in a row as one unit, every other message as one of its own.

    Tool results move up to their calls, in the order of the ids: after N calls the next N units
    are looked at; with fewer there nothing moves. Prompts show no ids, so the order is all that
    ties a result to its call.
    """
    units: list[list[Message]] = []
    for message in messages:
        last = units[-1][-1] if units else None
        if isinstance(message, UserMessage) and isinstance(last, UserMessage) and not last.task:
            units[-1].append(message)
        else:
            units.append([message])
    calls = [len(unit[0].tool_calls or ()) for unit in units]
    for start, count in enumerate(calls, 1):
        if start + count <= len(units):
            units[start : start + count] = sorted(units[start : start + count], key=_rank)
    return units


def _rank(unit: Sequence[Message]) -> tuple[bool, str]:
    message = unit[0]
    return not isinstance(message, ToolMessage), message.tool_call_id or ""


def _write_body(
    writer: PromptWriter, conversation: Conversation, units: Sequence[Sequence[Message]]
) -> None:
    before: Message | None = None
    for index, unit in enumerate(units):
        message = unit[0]
        if isinstance(message, UserMessage | ToolMessage):
            _write_spoken(writer, unit, before, conversation)
        elif isinstance(message, LatestReminderMessage):
            writer.special(SpecialToken.LatestReminder)
            writer.content(message)
        elif isinstance(message, AssistantMessage):
            after_task = before is not None and task_of(before) is not None
            is_last = index == len(units) - 1
            _write_answer(writer, message, conversation, is_last=is_last, after_task=after_task)
        before = unit[-1]


def _write_spoken(
    writer: PromptWriter,
    unit: Sequence[Message],
    before: Message | None,
    conversation: Conversation,
) -> None:
    """A tool result or users' texts; a turn is results and then texts."""
    is_result = isinstance(unit[0], ToolMessage)
    goes_on = isinstance(before, ToolMessage if is_result else ToolMessage | UserMessage)
    if goes_on and not task_of(before):
        writer.plain("\n\n")
    else:
        writer.special(SpecialToken.User)
    if is_result:
        write_tool_result(writer, unit[0])
        return
    _write_joined(writer, unit)
    if task := task_of(unit[-1]):
        write_task(writer, task, thinking=conversation.thinking_mode)


def _write_answer(
    writer: PromptWriter,
    message: AssistantMessage,
    conversation: Conversation,
    *,
    is_last: bool,
    after_task: bool,
) -> None:
    reasoning, calls = message.reasoning_content, message.tool_calls
    if not after_task:
        writer.special(SpecialToken.Assistant)
        if reasoning is not None and (tools_are_shown(conversation) or message.prefix):
            writer.special(SpecialToken.ThinkingStart)
            writer.said(reasoning)
        if message.content or not (message.prefix and conversation.thinking_mode):
            writer.special(SpecialToken.ThinkingEnd)
    writer.said(message.content)
    if calls is not None:
        writer.plain("\n\n")
        V4.write_calls(writer, sorted(calls, key=lambda call: call.id))
    if not (message.prefix and is_last):
        writer.special(SpecialToken.Eos)
