"""What a stream processor and a generator of events say to each other.

It does not know the three protocols.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from deepinfer.recipe.inference import InferenceFinishReason, PromptUsage


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer.

    `reasoning_tokens` is None where they are not counted: outside thinking mode and when the
    backend gave text instead of token ids.
    """

    prompt: PromptUsage
    completion_tokens: int
    reasoning_tokens: int | None

    @property
    def missed_tokens(self) -> int:
        """Prompt tokens that no cache held."""
        return max(self.prompt.prompt_tokens - self.prompt.prompt_cache_hit_tokens, 0)

    def plus(self, other: Usage) -> Usage:
        """The usage of two answers to one prompt."""
        reasoning = None
        if self.reasoning_tokens is not None or other.reasoning_tokens is not None:
            reasoning = (self.reasoning_tokens or 0) + (other.reasoning_tokens or 0)
        return Usage(self.prompt, self.completion_tokens + other.completion_tokens, reasoning)


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the answer ended.

    `reason` is None when the backend never said; `stop_sequence` is the one that was reached.
    """

    reason: InferenceFinishReason | None
    stop_sequence: str | None
    usage: Usage


class ProtocolEvent(Protocol):
    """A chunk or event of any protocol."""

    def to_json(self) -> str:
        """The data of a server-sent event."""
        ...


Event = TypeVar("Event", bound=ProtocolEvent)


class ChunkGenerator(Protocol[Event]):
    """Turns labelled spans into the events of one protocol.

    Every method returns the events to send now. `logprobs` are JSON texts, one a token, of the
    tokens whose text begins in this piece.
    """

    consumed: bool

    def start(self, prompt: PromptUsage, system_fingerprint: str | None) -> list[Event]:
        """The answer begins."""
        ...

    def reasoning(self, text: str, logprobs: list[str] | None) -> list[Event]:
        """A piece of reasoning."""
        ...

    def content(self, text: str, logprobs: list[str] | None) -> list[Event]:
        """A piece of the answer."""
        ...

    def call(self, name: str) -> list[Event]:
        """A tool call begins."""
        ...

    def arguments(self, text: str) -> list[Event]:
        """A piece of the arguments of the call that began last."""
        ...

    def finish(self, ending: Ending) -> list[Event]:
        """The answer is complete."""
        ...
