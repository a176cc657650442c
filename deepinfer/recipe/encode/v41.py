"""Prompts of V4.1 (recipe.md 2.2).

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
    ToolCall,
    ToolMessage,
    UserMessage,
)
from deepinfer.recipe.encode.common import (
    PromptEncoding,
    in_call_order,
    task_of,
    tools_are_shown,
    write_answer_start,
    write_task,
    write_tool_result,
)
from deepinfer.recipe.encode.dsml import V41
from deepinfer.recipe.encode.head import answer_form_v41, effort_v41
from deepinfer.recipe.encode.writer import PromptWriter


class DeepseekV41Encoding(PromptEncoding):
    """Writes conversations as prompts of V4.1, and as token ids with a tokenizer attached."""

    def _write(self, writer: PromptWriter, conversation: Conversation) -> None:
        messages = conversation.messages
        first = messages[0] if messages else None
        system = first if isinstance(first, SystemMessage) else None
        _write_head(writer, conversation, system)
        if system is not None:
            _write_schemas(writer, system)
        last = _write_body(writer, conversation, messages[system is not None :])
        if last is None or not (last.prefix or task_of(last)):
            write_answer_start(writer, thinking=conversation.thinking_mode)
        if tools_are_shown(conversation) and conversation.tool_choice == "required":
            V41.open_block(writer)


def _write_head(
    writer: PromptWriter, conversation: Conversation, system: SystemMessage | None
) -> None:
    form = answer_form_v41(conversation)
    tools = tools_are_shown(conversation)
    anything = bool(conversation.messages) or tools or form  # to think about
    effort = effort_v41(conversation) if anything else ""
    if effort or form or tools or system is not None:
        writer.special(SpecialToken.System)
    writer.plain(effort)
    if system is not None:
        writer.content(system)
    if tools:
        writer.plain("\n\n")
        V41.write_tools(writer, conversation.tools)
    if form:
        writer.plain("\n\n" + form)


def _write_schemas(writer: PromptWriter, message: SystemMessage) -> None:
    if message.tools:
        writer.plain("\n\n### Updated Tool Schemas\n\n" + V41.schemas(message.tools))


def _write_body(
    writer: PromptWriter, conversation: Conversation, messages: Sequence[Message]
) -> Message | None:
    """Every message in its place; returns the last one."""
    turn: list[Message] = []  # user and tool messages since another role spoke
    calls: Sequence[ToolCall] = ()
    last: Message | None = None
    for message in messages:
        if turn and (not isinstance(message, UserMessage | ToolMessage) or task_of(turn[-1])):
            _write_turn(writer, turn, calls, conversation)
            turn = []
        if isinstance(message, UserMessage | ToolMessage):
            turn.append(message)
        elif isinstance(message, SystemMessage):
            writer.special(SpecialToken.System)
            writer.content(message)
            _write_schemas(writer, message)
        elif isinstance(message, LatestReminderMessage):
            writer.special(SpecialToken.LatestReminder)
            writer.content(message)
        elif isinstance(message, AssistantMessage):
            _write_answer(writer, message, conversation, after_task=bool(last and task_of(last)))
            calls = message.tool_calls or calls  # results may come behind an answer without calls
        last = message
    if turn:
        _write_turn(writer, turn, calls, conversation)
    return last


def _write_turn(
    writer: PromptWriter,
    turn: list[Message],
    calls: Sequence[ToolCall],
    conversation: Conversation,
) -> None:
    writer.special(SpecialToken.User)
    for index, message in enumerate(in_call_order(turn, calls)):
        if index:
            writer.plain("\n\n")
        if isinstance(message, ToolMessage):
            write_tool_result(writer, message)
        else:
            writer.content(message)
    if task := task_of(turn[-1]):
        write_task(writer, task, thinking=conversation.thinking_mode)


def _write_answer(
    writer: PromptWriter,
    message: AssistantMessage,
    conversation: Conversation,
    *,
    after_task: bool,
) -> None:
    calls = message.tool_calls
    if not after_task:
        writer.special(SpecialToken.Assistant)
        ended = True
        if conversation.thinking_mode and (tools_are_shown(conversation) or message.prefix):
            writer.special(SpecialToken.ThinkingStart)
            writer.said(message.reasoning_content or "")
            ended = bool(message.content or calls or not message.prefix)
        if ended:
            writer.special(SpecialToken.ThinkingEnd)
    writer.said(message.content)
    if calls:
        writer.plain("\n\n")
        V41.write_calls(writer, calls)
    if not message.prefix:
        writer.special(SpecialToken.Eos)
