"""Completions requests: text to be continued, or the gap in a text to be filled (recipe.md 4.9).

The published wheel has no such protocol. This file does not know how answers become events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deepinfer.recipe.conversation import RenderedPrompt, SpecialToken
from deepinfer.recipe.convert import sampling
from deepinfer.recipe.convert.body import ProtocolRequest, RequestBody
from deepinfer.recipe.encode.writer import PromptWriter
from deepinfer.recipe.failures import ConversionError
from deepinfer.recipe.options import (
    ConversionOptions,
    InferenceOptions,
    ModelVersion,
    ParsingOptions,
)
from deepinfer.recipe.shapes import (
    Field,
    boolean,
    float32,
    maybe,
    record,
    string,
    text_or_list,
    uint8,
    uint32,
)

# Spellings of the tokens around a gap (recipe.md 2.1).
FIM_BEGIN = "<｜fim▁begin｜>"
FIM_HOLE = "<｜fim▁hole｜>"
FIM_END = "<｜fim▁end｜>"


@dataclass(frozen=True, slots=True)
class CompletionPrompt:
    """A text to be continued, with all that is needed to do so.

    Attributes:
        prompt: what the model is given.
        model_version: the model it is for.
        inference_options: sampling and lengths.
        parsing_options: the answer is plain text that ends at a stop sequence.
        stream: whether the answer is wanted as a stream.
        echo: the text that the answer repeats first, empty unless asked for.
    """

    prompt: RenderedPrompt
    model_version: ModelVersion
    inference_options: InferenceOptions
    parsing_options: ParsingOptions
    stream: bool
    echo: str


@dataclass(frozen=True, slots=True)
class _Body:
    model: str
    prompt: str
    suffix: str | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    stop: str | list[str] | None
    stream: bool | None
    stream_options: bool
    logprobs: int | None
    echo: bool | None


def _given(include_usage: bool | None) -> bool:
    return True


_READ = record(
    _Body,
    "struct CompletionRequest",
    model=Field(string),
    prompt=Field(string),
    suffix=maybe(string),
    max_tokens=maybe(uint32),
    temperature=maybe(float32),
    top_p=maybe(float32),
    presence_penalty=maybe(float32),
    frequency_penalty=maybe(float32),
    stop=maybe(text_or_list(string, "expected a string or a list")),
    stream=maybe(boolean),
    stream_options=maybe(record(_given, "struct StreamOptions", include_usage=maybe(boolean))),
    logprobs=maybe(uint8),
    echo=maybe(boolean),
)


class CompletionRequest(ProtocolRequest[_Body]):
    """A Completions request. Conversion uses it up, also when it fails.

    Args:
        body: JSON text, or the value of one.

    Raises:
        BodyError: no JSON, or not the shape of the protocol.
        TypeError, ValueError, OverflowError: a dictionary holds what JSON cannot.
    """

    __slots__ = ()

    def __init__(self, body: RequestBody) -> None:
        super().__init__(body, _READ)

    def convert(self, options: ConversionOptions) -> CompletionPrompt:
        """Make a prompt of the request; thinking is off.

        Raises:
            ConversionError: the request asks for what cannot be.
            RuntimeError: it was converted before.
        """
        return _convert(self._take(), options)


def _convert(body: _Body, options: ConversionOptions) -> CompletionPrompt:
    version = sampling.model_version(body.model, options)
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    sampling.check_stops(stops, "stop", single=isinstance(body.stop, str))
    if body.stream_options and not body.stream:
        raise ConversionError(
            "stream_options should be set along with stream = true", "stream_options"
        )
    if body.echo and body.suffix is not None:
        raise ConversionError("echo should not be used with suffix", "echo")
    sampling.check_range("presence_penalty", body.presence_penalty, -2, 2)
    sampling.check_range("frequency_penalty", body.frequency_penalty, -2, 2)
    settings: dict[str, Any] = {
        "temperature": sampling.temperature(body.temperature, thinking=False),
        "top_p": sampling.top_p(body.top_p, version, thinking=False, has_tools=False),
        "logprobs": body.logprobs is not None,
        "top_logprobs": sampling.top_logprobs(body.logprobs),
        "max_tokens": sampling.max_tokens(body.max_tokens, options, thinking=False),
    }
    return CompletionPrompt(
        _prompt(body, options),
        version,
        InferenceOptions(**settings),
        ParsingOptions(
            parse_tool_calls=False, stop_sequences=stops, special_tokens=options.special_tokens
        ),
        body.stream is True,
        body.prompt if body.echo else "",
    )


def _prompt(body: _Body, options: ConversionOptions) -> RenderedPrompt:
    """The text itself, or with a suffix both ends of the gap."""
    writer = PromptWriter(options.special_tokens)
    writer.special(SpecialToken.Bos)
    if body.suffix is None:
        writer.plain(body.prompt)
        return writer.finish()
    writer.spelled(FIM_BEGIN)
    writer.plain(body.prompt)
    writer.spelled(FIM_HOLE)
    writer.plain(body.suffix)
    writer.spelled(FIM_END)
    return writer.finish()
