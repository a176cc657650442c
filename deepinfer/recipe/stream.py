"""The way back: chunks of a backend to events of a protocol.

It does not know which protocol; a generator does.
"""

from __future__ import annotations

from typing import Generic

from deepinfer.recipe.events.logprobs import TokenLedger
from deepinfer.recipe.events.protocol import ChunkGenerator, Ending, Event, Usage
from deepinfer.recipe.inference import (
    InferenceChunk,
    InferenceFinishReason,
    PromptUsage,
    check_kind,
)
from deepinfer.recipe.options import ParsingOptions
from deepinfer.recipe.parse import Label, OutputParser, Span
from deepinfer.recipe.token_text import TokenSpellings, TokenText

__all__ = ["InferenceChunk", "InferenceFinishReason", "PromptUsage", "StreamProcessor"]


class StreamProcessor(Generic[Event]):
    """Turns the output of one answer into protocol events.

    Args:
        generator: of the protocol; used up by this processor.
        options: how the output is marked up, from the converted request.
        tokenizer: needed for chunks of token ids.

    Raises:
        RuntimeError: the generator is already in use.
    """

    def __init__(
        self,
        generator: ChunkGenerator[Event],
        options: ParsingOptions,
        tokenizer: TokenSpellings | None = None,
    ) -> None:
        if generator.consumed:
            raise RuntimeError("chunk generator has been consumed")
        generator.consumed = True
        self._generator = generator
        self._options = options
        self._parser: OutputParser | None = None
        self._tokenizer = tokenizer
        self._thinking = options.thinking_initial_stage is not None
        self._prompt = PromptUsage()
        self._started = False
        self._finished = False
        self._closed = False
        self._completion_tokens = 0
        self._ledger: TokenLedger | None = None
        self._token_text: TokenText | None = None

    @property
    def finished(self) -> bool:
        """Whether the answer is complete and the processor not closed."""
        return self._finished and not self._closed

    def push(self, chunk: InferenceChunk) -> list[Event]:
        """Process one chunk.

        Returns:
            The events that are certain now; the last ones come with a finish chunk or at once
            when a stop sequence is reached.

        Raises:
            TypeError: no `InferenceChunk`.
            RuntimeError: the answer is complete, the processor closed, token ids came without
                a tokenizer, or there are not as many log-probabilities as ids. The last two
                close the processor.
        """
        check_kind(chunk, InferenceChunk)
        if self._closed:
            raise RuntimeError("stream processor is closed")
        if self._finished:
            raise RuntimeError("stream processor has finished")
        text = chunk.content
        if chunk.kind == "tokens":
            text = self._decode(chunk)
            if not text:
                return []
        events: list[Event] = [] if self._started else self._start(chunk)
        if chunk.kind == "finish":
            return events + self._end(chunk.finish_reason)
        if text is not None:
            if chunk.token_count:
                self._completion_tokens += chunk.token_count
            if self._ledger is not None and chunk.kind == "text":
                self._ledger.add_text(len(text))
            self._tell(self._reader().feed(text), events)
        return events

    def finish(self) -> list[Event]:
        """The backend ended without a finish chunk: give out what is held back.

        Returns:
            The last events; none when the answer is already complete.

        Raises:
            RuntimeError: the processor is closed.
        """
        if self._closed:
            raise RuntimeError("stream processor is closed")
        if self._finished:
            return []
        events: list[Event] = [] if self._started else self._start(None)
        return events + self._end(None)

    def close(self) -> None:
        """Give the state up; nothing can be pushed any more."""
        self._closed = True

    def _reader(self) -> OutputParser:
        # The first output decides whether special tokens are told by their ids.
        if self._parser is None:
            marks = None if self._token_text is None else self._token_text.marks
            self._parser = OutputParser(self._options, marks)
        return self._parser

    def _start(self, chunk: InferenceChunk | None) -> list[Event]:
        self._started = True
        fingerprint = None
        if chunk is not None and chunk.prompt_usage is not None:
            self._prompt = chunk.prompt_usage
            fingerprint = chunk.system_fingerprint
        return self._generator.start(self._prompt, fingerprint)

    def _end(self, reason: InferenceFinishReason | None) -> list[Event]:
        events: list[Event] = []
        truncated = reason is not InferenceFinishReason.Stop
        self._tell(self._reader().finish(truncated), events)
        if not self._finished:  # a stop sequence may have been reached in what was held back
            events += self._ending(reason, None)
        return events

    def _ending(self, reason: InferenceFinishReason | None, stop: str | None) -> list[Event]:
        self._finished = True
        reasoning = None
        if self._thinking and self._ledger is not None:
            reasoning = self._ledger.reasoning_tokens
        usage = Usage(self._prompt, self._completion_tokens, reasoning)
        return self._generator.finish(Ending(reason, stop, usage))

    def _tell(self, spans: list[Span], events: list[Event]) -> None:
        generator, ledger = self._generator, self._ledger
        for label, text, size in spans:
            logprobs = None if ledger is None else ledger.take(label, size)
            if label is Label.CONTENT:
                events += generator.content(text, logprobs)
            elif label is Label.REASONING:
                events += generator.reasoning(text, logprobs)
            elif label is Label.ARGUMENTS:
                events += generator.arguments(text)
            elif label is Label.CALL:
                events += generator.call(text)
            elif label is Label.STOP:
                events += self._ending(InferenceFinishReason.Stop, text)
                return

    def _decode(self, chunk: InferenceChunk) -> str:
        """The text that new ids give."""
        tokenizer, ids = self._tokenizer, chunk.token_ids or []
        if tokenizer is None:
            self._closed = True
            raise RuntimeError("token chunk received without a tokenizer")
        logprobs = chunk.logprobs
        if logprobs is not None and len(logprobs) != len(ids):
            self._closed = True
            raise RuntimeError(
                f"invalid log probabilities: {len(logprobs)} log probabilities for "
                f"{len(ids)} token IDs"
            )
        if self._ledger is None or self._token_text is None:
            self._ledger = TokenLedger()
            tokens = self._options.special_tokens
            self._token_text = TokenText(tokenizer, tokens, self._ledger)
            if self._parser is not None:
                self._token_text.spell_marks()
        self._completion_tokens += len(ids)
        return self._token_text.read(ids, logprobs)
