"""Questions as prompts of the model and its answers as replies, for the offline engine.

The conversion and the parser are those of `LLM.chat`. Knows nothing of sampling: that is the
run's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepinfer.engine import chat
from deepinfer.engine.border import Prompt
from deepinfer.eval.chat import chat_body, reply_of
from deepinfer.eval.question import Question, Reply, Settings
from deepinfer.recipe import ConversationRequest, ModelVersion

_MODEL = ModelVersion.DeepseekV41Flash.value


class ChatCodec:
    """Prompts of V4.1 and what is written after them.

    Args:
        tokenizer_json: text of the checkpoint's `tokenizer.json`.

    Attributes:
        tokenizer: what prompts are encoded with.
        sampling: no text is needed, since answers are read from ids.
    """

    def __init__(self, tokenizer_json: str):
        self.sampling: dict[str, Any] = {"detokenize": False}
        self._codec = chat.ChatCodec(tokenizer_json)
        self.tokenizer = self._codec.tokenizer

    def prompt(self, question: Question, settings: Settings) -> Prompt:
        """Ids of the prompt.

        Raises:
            RequestError: the chat format cannot express the question.
        """
        return self._codec.encode(self._converted(question, settings))

    def read(
        self, question: Question, settings: Settings, ids: Sequence[int], *, truncated: bool
    ) -> Reply:
        """Content, reasoning and calls of an answer.

        Args:
            question: what it answers.
            settings: how it was asked.
            ids: what the model wrote, without the end token.
            truncated: the length limit ended it.
        """
        reader = chat.ChatReader(self._converted(question, settings), self.tokenizer)
        reader.push_ids(ids)
        reader.finish("length" if truncated else "stop")
        return reply_of(reader.completion())

    def _converted(self, question: Question, settings: Settings) -> ConversationRequest:
        return self._codec.convert(chat_body(question, settings, _MODEL))
