"""Dialogues as token ids, and which of them the model said itself.

Prompts are the codec's own, so that training sees exactly what the engine is given. Knows nothing
of what dialogues are about.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepinfer.engine.chat import ChatCodec
from deepinfer.recipe import RenderedPrompt, SpecialToken, SpecialTokens, ToolCall
from deepinfer.recipe.encode.dsml import V41
from deepinfer.recipe.encode.writer import PromptWriter

Message = Mapping[str, Any]
"""A message of a chat-completions request."""


@dataclass(frozen=True)
class Dialogue:
    """A conversation whose answers are to be learnt.

    Attributes:
        messages: in order; the last one is the assistant's, and it may have `reasoning_content`
            and `tool_calls` besides `content`.
        tools, schema: as in a request.
        thinking: the model reasons; then only what the codec keeps of earlier reasoning is learnt
            besides the last answer.
        effort: how much it reasons, None for the default.
    """

    messages: Sequence[Message]
    tools: Sequence[Message] = ()
    schema: Message | None = None
    thinking: bool = False
    effort: str | None = None

    def body(self) -> dict[str, Any]:
        """The request that the last message answers."""
        body: dict[str, Any] = {
            "messages": list(self.messages[:-1]),
            "thinking": {"type": "enabled" if self.thinking else "disabled"},
        }
        if self.tools:
            body["tools"] = list(self.tools)
        if self.schema is not None:
            form = {"name": "answer", "schema": self.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        if self.effort is not None:
            body["reasoning_effort"] = self.effort
        return body


def ask(content: str, answer: str, reasoning: str | None = None) -> Dialogue:
    """One question and its answer; the model reasons if a reasoning is given."""
    said = {"role": "assistant", "content": answer}
    if reasoning is not None:
        said["reasoning_content"] = reasoning
    return Dialogue([{"role": "user", "content": content}, said], thinking=reasoning is not None)


def with_system(dialogue: Dialogue, text: str) -> Dialogue:
    """The same after a system message."""
    return replace(dialogue, messages=[{"role": "system", "content": text}, *dialogue.messages])


def calling(calls: Sequence[tuple[str, Mapping[str, Any]]], first: int = 1) -> list[Message]:
    """Tool calls of an assistant message, numbered from `first` on."""
    return [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
        }
        for number, (name, arguments) in enumerate(calls, first)
    ]


@dataclass(frozen=True)
class Document:
    """What a row of a batch is packed from.

    Attributes:
        ids: [n] token ids, from BOS to EOS.
        weights: [n] loss weight of each id as a target; 0 for the first.
    """

    ids: NDArray[np.uint16]
    weights: NDArray[np.float32]


def rendered_answer(dialogue: Dialogue) -> RenderedPrompt:
    """The last message as the model writes it after the prompt, EOS included."""
    message, writer = dialogue.messages[-1], PromptWriter(SpecialTokens())
    if dialogue.thinking:
        writer.plain(message["reasoning_content"])
        writer.special(SpecialToken.ThinkingEnd)
    writer.plain(message["content"])
    if calls := message.get("tool_calls"):
        writer.plain("\n\n")
        said = [(call["id"], call["function"]) for call in calls]
        V41.write_calls(
            writer, [ToolCall(name, each["name"], each["arguments"]) for name, each in said]
        )
    writer.special(SpecialToken.Eos)
    return writer.finish()


PROMPT_WEIGHT = 0.05  # what others say teaches a little too
TEXT_WEIGHT = 0.3


class Encoder:
    """Makes documents.

    Args:
        tokenizer_json: text of a `tokenizer.json` of at most 65,536 ids.
    """

    def __init__(self, tokenizer_json: str):
        self._codec = ChatCodec(tokenizer_json)
        tokens = SpecialTokens()
        self._special = {
            token: self._codec.tokenizer.encode(tokens.token(token))[0]
            for token in (
                SpecialToken.Bos,
                SpecialToken.Eos,
                SpecialToken.Assistant,
                SpecialToken.ThinkingStart,
                SpecialToken.ThinkingEnd,
            )
        }

    def dialogue(self, dialogue: Dialogue) -> Document:
        """Ids of the whole conversation; weight 1 where the model speaks, its EOS included.

        Raises:
            RequestError: the chat format cannot express it.
        """
        prompt = self._codec.encode(self._codec.convert(dialogue.body()))
        answer = self._codec.tokenizer.encode_prompt(rendered_answer(dialogue))
        ids = np.array([*prompt, *answer], np.uint16)
        weights = np.where(self._spoken(ids, thinking=dialogue.thinking), 1, PROMPT_WEIGHT)
        weights[0] = 0
        return Document(ids, weights.astype(np.float32))

    def text(self, text: str) -> Document:
        """Plain text from BOS to EOS, all of it learnt a little."""
        ids = [
            self._special[SpecialToken.Bos],
            *self._codec.tokenizer.encode(text),
            self._special[SpecialToken.Eos],
        ]
        weights = np.full(len(ids), TEXT_WEIGHT, np.float32)
        weights[0] = 0
        return Document(np.array(ids, np.uint16), weights)

    def _spoken(self, ids: NDArray[np.uint16], *, thinking: bool) -> NDArray[np.bool_]:
        """[n] whether the model wrote an id: from behind the mark that opens an answer to EOS.

        Text of others never has these ids: plain text is encoded without special tokens.
        """
        mark = SpecialToken.ThinkingStart if thinking else SpecialToken.ThinkingEnd
        opened = np.zeros(len(ids), bool)
        opened[2:] = (ids[:-2] == self._special[SpecialToken.Assistant]) & (
            ids[1:-1] == self._special[mark]
        )
        ended = np.zeros(len(ids), bool)
        ended[1:] = ids[:-1] == self._special[SpecialToken.Eos]
        events = np.where(opened, 1, np.where(ended, -1, 0))
        latest = np.maximum.accumulate(np.where(events != 0, np.arange(len(ids)), 0))
        return events[latest] == 1
