"""What the prompts of both versions share: the front of an encoder, user turns, task answers.

It does not know the rules of either version.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

from deepinfer.recipe.checks import check_kind
from deepinfer.recipe.conversation import (
    Conversation,
    Message,
    RenderedPrompt,
    SpecialToken,
    SpecialTokens,
    Task,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from deepinfer.recipe.encode.writer import PromptWriter
from deepinfer.recipe.tokens import Tokenizer


class PromptEncoding(ABC):
    """Writes conversations as prompts of one version; made as one of its two subclasses."""

    def __init__(self) -> None:
        self._tokens = SpecialTokens()
        self._tokenizer: Tokenizer | None = None

    def with_tokenizer(self, tokenizer: Tokenizer) -> Self:
        """A new encoding whose `encode` uses `tokenizer`."""
        check_kind("tokenizer", tokenizer, Tokenizer)
        new = copy.copy(self)
        new._tokenizer = tokenizer
        return new

    def with_special_tokens(self, special_tokens: SpecialTokens) -> Self:
        """A new encoding that spells special tokens in another way."""
        check_kind("special_tokens", special_tokens, SpecialTokens)
        new = copy.copy(self)
        new._tokens = special_tokens
        return new

    def render_conversation(self, conversation: Conversation) -> RenderedPrompt:
        """The prompt as text, with the places of its special tokens and its images in order.

        Raises:
            ValueError: the version has no way to write it (`encode.head.effort_v4`).
        """
        writer = PromptWriter(self._tokens)
        writer.special(SpecialToken.Bos)
        self._write(writer, conversation)
        return writer.finish()

    def encode(self, conversation: Conversation) -> list[int]:
        """The prompt as token ids; one id stands for each image.

        Raises:
            RuntimeError: no tokenizer is attached, or it lacks one of the special tokens.
            ValueError: as `render_conversation`.
        """
        if self._tokenizer is None:
            raise RuntimeError("no tokenizer is attached to the encoding; call with_tokenizer")
        return self._tokenizer.encode_prompt(self.render_conversation(conversation))

    @abstractmethod
    def _write(self, writer: PromptWriter, conversation: Conversation) -> None: ...


def tools_are_shown(conversation: Conversation) -> bool:
    """Whether the prompt speaks of the tools of the request."""
    return bool(conversation.tools) and conversation.tool_choice != "none"


def in_call_order(messages: list[Message], calls: Sequence[ToolCall]) -> list[Message]:
    """Tool results of one turn in the order of the calls; everything else stays in its place.

    The result of an unknown call counts as one of the first call; one without an id is never
    moved. Prompts show no ids, so the order is all that ties a result to its call.
    """
    place: dict[str | None, int] = {}
    for index, call in enumerate(calls):
        place.setdefault(call.id, index)
    slots = [
        index
        for index, message in enumerate(messages)
        if isinstance(message, ToolMessage) and message.tool_call_id is not None
    ]
    results = sorted(
        (messages[slot] for slot in slots),
        key=lambda message: place.get(message.tool_call_id, 0),
    )
    ordered = list(messages)
    for slot, message in zip(slots, results, strict=True):
        ordered[slot] = message
    return ordered


def write_tool_result(writer: PromptWriter, message: Message) -> None:
    """A tool message as part of a user turn."""
    writer.plain("<tool_result>")
    writer.content(message)
    writer.plain("</tool_result>")


def task_of(message: Message) -> Task | None:
    """The quick instruction that a message ends with."""
    return message.task if isinstance(message, UserMessage) else None


def write_task(writer: PromptWriter, task: Task, *, thinking: bool) -> None:
    """A quick instruction; the model's answer to it follows at once (recipe.md 2.12)."""
    if task == "action":
        write_answer_start(writer, thinking=thinking)
    writer.spelled(f"<｜{task}｜>")


def write_answer_start(writer: PromptWriter, *, thinking: bool) -> None:
    """Where the model begins to write."""
    writer.special(SpecialToken.Assistant)
    writer.special(SpecialToken.ThinkingStart if thinking else SpecialToken.ThinkingEnd)
