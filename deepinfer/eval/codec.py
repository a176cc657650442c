"""The chat format of the model, for questions that the offline engine answers.

The same conversion that a server makes of a request, and the same reading of what the model
writes. Knows nothing of sampling: that is the run's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from deepinfer.engine.border import Prompt
from deepinfer.errors import RequestError
from deepinfer.eval.chat import chat_body, reply_of
from deepinfer.eval.question import Question, Reply, Settings
from deepinfer.recipe import (
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ConversationRequest,
    ConversionError,
    ConversionOptions,
    DeepseekV41Encoding,
    InferenceChunk,
    InferenceFinishReason,
    ModelVersion,
    StreamProcessor,
    Tokenizer,
)

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
        self.tokenizer = Tokenizer.from_str(tokenizer_json).for_v41()
        self._encoding = DeepseekV41Encoding().with_tokenizer(self.tokenizer)

    def prompt(self, question: Question, settings: Settings) -> Prompt:
        """Ids of the prompt.

        Raises:
            RequestError: the chat format cannot express the question.
        """
        return self._encoding.encode(_converted(question, settings).conversation)

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
        request = _converted(question, settings)
        generator = ChatCompletionRequest.chunk_generator(request, "answer", _MODEL)
        processor = StreamProcessor(generator, request.parsing_options, self.tokenizer)
        reason = InferenceFinishReason.Length if truncated else InferenceFinishReason.Stop
        events = processor.push(InferenceChunk.tokens(list(ids)))
        if not processor.finished:
            events += processor.push(InferenceChunk.finish(reason))
        response = ChatCompletionResponse("answer", _MODEL, 0, 0, 0)
        for event in events:
            assert isinstance(event, ChatCompletionChunk)
            response.accumulate(event)
        return reply_of(json.loads(response.to_json()))


def _converted(question: Question, settings: Settings) -> ConversationRequest:
    body = chat_body(question, settings, _MODEL)
    try:
        return ChatCompletionRequest(body).convert(ConversionOptions())
    except (ConversionError, ValueError) as error:
        raise RequestError(str(error)) from error
