"""Conversations at the text border: chat requests become prompts, completions become messages.

Knows neither HTTP nor how completions are computed. The codec itself is `deepinfer.recipe`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from deepinfer.engine.border import TokensPrompt
from deepinfer.engine.constrained import Demand
from deepinfer.errors import CheckpointError, RequestError
from deepinfer.grammar import AT_ONCE, AtEach, Constraint, Tool, tool_calls
from deepinfer.grammar.tool_calls import DSML
from deepinfer.recipe import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    Conversation,
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
from deepinfer.request import CompletionOutput, FinishReason, RequestOutput, SamplingParams

_MODEL = "model"  # requests inside one process need no name


class ChatPrompt(NamedTuple):
    """A conversation as the engine takes it: ids of the prompt, and what parses the answer."""

    ids: list[int]
    request: ConversationRequest

    @property
    def tokens(self) -> TokensPrompt:
        """The ids as a prompt."""
        return {"prompt_token_ids": self.ids}


class ChatCodec:
    """Encodes conversations for one model and reads its answers.

    Args:
        source: the directory that holds the `tokenizer.json`, or the text of one.

    Attributes:
        tokenizer: what prompts are encoded with.

    Raises:
        CheckpointError: the file is missing or damaged.
        RuntimeError: the text is damaged.
    """

    def __init__(self, source: Path | str):
        loaded = Tokenizer.from_str(source) if isinstance(source, str) else _loaded(source)
        self.tokenizer = loaded.for_v41()
        self._encoding = DeepseekV41Encoding().with_tokenizer(self.tokenizer)
        self._options = ConversionOptions().with_model_alias(_MODEL, ModelVersion.DeepseekV41Flash)

    def prompt(self, body: Mapping[str, Any]) -> ChatPrompt:
        """Render and encode a conversation.

        Args:
            body: a chat-completions request: `messages`, and as wanted `tools`, `tool_choice`,
                `thinking`, `reasoning_effort`, `response_format`.

        Raises:
            RequestError: the conversation is malformed or holds images.
        """
        request = self.convert(body)
        return ChatPrompt(self.encode(request), request)

    def demand(self, prompt: ChatPrompt) -> Demand | None:
        """What the answer must satisfy by the conversation's own words; None = nothing.

        Raises:
            RequestError: its tools cannot be written as a grammar.
        """
        wish = prompt.request.inference_options.output_constraint
        if wish is None:
            return None
        if wish.kind == "regex":
            return Demand(Constraint("regex", wish.schema))
        if wish.kind == "json":
            kind = "json_schema" if wish.schema else "json_object"
            return Demand(Constraint(kind, wish.schema))
        tools, required = _tools(wish.schema), wish.kind == "tool_call_required"
        answer = _answer(prompt.request.conversation)
        if required or answer is None:
            start = AT_ONCE if required else AtEach(self._mark(), b"<")
            return Demand(tool_calls(tools, "v4.1", required=required), start)
        return Demand(tool_calls(tools, "v4.1", required=False, answer=answer))

    def _mark(self) -> int:
        ids = self.tokenizer.encode(DSML)
        if len(ids) != 1:
            raise RequestError(f"tool calls need the token {DSML}, which this tokenizer lacks")
        return ids[0]

    def convert(self, body: Mapping[str, Any]) -> ConversationRequest:
        """The conversation of a request, which may ask for any form of output.

        Args:
            body: as in `prompt`.

        Raises:
            RequestError: the conversation is malformed or holds images.
        """
        try:
            request = ChatCompletionRequest({**body, "model": _MODEL}).convert(self._options)
        except ConversionError as error:
            raise RequestError(_message(error)) from None
        except (ValueError, TypeError) as error:
            raise RequestError(f"the conversation cannot be read: {error}") from None
        if any(message.image_sources for message in request.conversation.messages):
            raise RequestError("the conversation holds images; this engine reads text only")
        return request

    def encode(self, request: ConversationRequest) -> list[int]:
        """Ids of the prompt of a conversation."""
        return self._encoding.encode(request.conversation)

    def params(
        self, prompt: ChatPrompt, given: SamplingParams | None, max_model_len: int
    ) -> SamplingParams:
        """Sampling values of a chat prompt: those given, or the model's own for its mode."""
        if given is not None:
            # Markup has to reach the parser; what is no markup is put out as it stands.
            return dataclasses.replace(given, skip_special_tokens=False)
        options = prompt.request.inference_options
        try:
            room = prompt.request.resolve_max_tokens(len(prompt.ids), max_model_len)
        except ConversionError as error:
            raise RequestError(_message(error)) from None
        return SamplingParams(
            temperature=1.0 if options.temperature is None else options.temperature,
            top_p=1.0 if options.top_p is None else options.top_p,
            max_tokens=room,
            skip_special_tokens=False,
        )

    def reader(self, prompt: ChatPrompt) -> ChatReader:
        """What reads one answer to a prompt of this codec."""
        return ChatReader(prompt.request, self.tokenizer)

    def answer(self, prompt: ChatPrompt, output: RequestOutput) -> RequestOutput:
        """The same result with the message of every completion."""
        outputs: list[CompletionOutput] = []
        for item in output.outputs:
            reader = self.reader(prompt)
            reader.push(item.text)
            reader.finish(item.finish_reason)
            outputs.append(dataclasses.replace(item, message=reader.message()))
        return dataclasses.replace(output, outputs=tuple(outputs))


class ChatReader:
    """Reads an answer as it comes.

    Args:
        request: the conversation that is answered.
        tokenizer: of the codec that converted it.
    """

    def __init__(self, request: ConversationRequest, tokenizer: Tokenizer):
        generator = ChatCompletionRequest.chunk_generator(request, "chat", _MODEL)
        self._processor = StreamProcessor(generator, request.parsing_options, tokenizer)
        self._response = ChatCompletionResponse("chat", _MODEL, 0, 0, 0)
        self._feed(InferenceChunk.ready())

    def push(self, text: str) -> list[dict[str, Any]]:
        """Take more of the answer's text; returns what it adds, as deltas of chat completions."""
        return self._feed(InferenceChunk.text(text)) if text else []

    def push_ids(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """The same with ids, end tokens left out; an answer comes as text or as ids."""
        return self._feed(InferenceChunk.tokens(ids)) if ids else []

    def finish(self, reason: FinishReason | None) -> list[dict[str, Any]]:
        """The answer ends; returns what was held back."""
        why = InferenceFinishReason.Length if reason == "length" else InferenceFinishReason.Stop
        return self._feed(InferenceChunk.finish(why))

    def message(self) -> dict[str, Any]:
        """The whole message: `role`, `content` and as there are `reasoning_content` and
        `tool_calls`."""
        return self.completion()["choices"][0]["message"]

    def completion(self) -> dict[str, Any]:
        """The answer as a chat completion, without the usage of the prompt."""
        return json.loads(self._response.to_json())

    def _feed(self, chunk: InferenceChunk) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if self._processor.finished:  # a stop sequence of the conversation ended it
            return deltas
        for event in self._processor.push(chunk):
            deltas.append(json.loads(event.to_json())["choices"][0]["delta"])
            self._response.accumulate(cast("Any", event))
        return deltas


def _loaded(directory: Path) -> Tokenizer:
    file = directory / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(file))
    except RuntimeError as error:
        raise CheckpointError(str(file), [str(error)]) from error


def _answer(conversation: Conversation) -> Constraint | None:
    """What an answer beside tools must satisfy if it is no call; the codec tells of the tools."""
    if conversation.response_schema is not None:
        return Constraint("json_schema", json.dumps(conversation.response_schema))
    if conversation.response_format == "json_object":
        return Constraint("json_object", "")
    regex = conversation.response_regex
    return None if regex is None else Constraint("regex", regex)


def _tools(schema: str) -> list[Tool]:
    """Tools of a constraint of the codec, a JSON array of functions."""
    functions = [entry["function"] for entry in json.loads(schema)]
    return [Tool(f["name"], f["parameters"], bool(f["strict"])) for f in functions]


def _message(error: ConversionError) -> str:
    """The sentence inside the protocol's error body."""
    body = json.loads(error.body)
    inner = body.get("error", body) if isinstance(body, dict) else body
    text = inner.get("message") if isinstance(inner, dict) else None
    return str(text or error.body)
