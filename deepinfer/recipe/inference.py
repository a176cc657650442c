"""What a backend tells while it answers: prompt usage, text or token ids, the reason it stopped.

It does not know how an answer is marked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, TypeAlias

from deepinfer.recipe.checks import check_text

ChunkKind: TypeAlias = Literal["ready", "text", "tokens", "finish"]
# The log-probability of a token and of its likeliest rivals, as (id, log-probability).
TokenLogprobs: TypeAlias = tuple[float, Sequence[tuple[int, float]]]

_COUNT_BITS = 64
_TOKEN_BITS = 32


class InferenceFinishReason(Enum):
    """Why the backend stopped; what the client is told also depends on the parsed output."""

    Stop = 0
    Length = 1
    ContentFilter = 2


def check_kind(value: object, kind: type) -> None:
    """Accept a value of one class.

    Raises:
        TypeError: anything else.
    """
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, not {type(value).__name__}")


def _check_unsigned(name: str, value: object, bits: int) -> None:
    if not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    if not 0 <= value < 1 << bits:
        raise OverflowError(f"{name}={value} is not in [0, 2^{bits})")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptUsage:
    """Tokens of the prompt, and how many of them the prefix cache held.

    Raises:
        TypeError: no integer.
        OverflowError: not in [0, 2^64).
    """

    prompt_tokens: int = 0
    prompt_cache_hit_tokens: int = 0

    def __post_init__(self) -> None:
        _check_unsigned("prompt_tokens", self.prompt_tokens, _COUNT_BITS)
        _check_unsigned("prompt_cache_hit_tokens", self.prompt_cache_hit_tokens, _COUNT_BITS)


class InferenceChunk:
    """One message of the backend; made with `ready`, `text`, `tokens` or `finish`."""

    __slots__ = (
        "content",
        "finish_reason",
        "kind",
        "logprobs",
        "prompt_usage",
        "system_fingerprint",
        "token_count",
        "token_ids",
    )

    def __init__(self, kind: ChunkKind) -> None:
        self.kind: ChunkKind = kind
        self.content: str | None = None
        self.token_count: int | None = None
        self.token_ids: list[int] | None = None
        self.logprobs: list[TokenLogprobs] | None = None
        self.prompt_usage: PromptUsage | None = None
        self.system_fingerprint: str | None = None
        self.finish_reason: InferenceFinishReason | None = None

    @staticmethod
    def ready(
        *, prompt_usage: PromptUsage | None = None, system_fingerprint: str | None = None
    ) -> InferenceChunk:
        """The prompt is computed; must come first to count.

        Args:
            prompt_usage: zeros when not given.
            system_fingerprint: copied into the chunks of Chat Completions.
        """
        chunk = InferenceChunk("ready")
        chunk.prompt_usage = PromptUsage() if prompt_usage is None else prompt_usage
        if system_fingerprint is not None:
            check_text("system_fingerprint", system_fingerprint)
        chunk.system_fingerprint = system_fingerprint
        return chunk

    @staticmethod
    def text(content: str, token_count: int = 0) -> InferenceChunk:
        """Generated text.

        Args:
            content: any cut of the output, between code points.
            token_count: tokens that it stands for, added to the completion tokens.

        Raises:
            UnicodeEncodeError: half of a surrogate pair (a ValueError).
            OverflowError: `token_count` is not in [0, 2^64).
        """
        check_text("content", content)
        if token_count:
            _check_unsigned("token_count", token_count, _COUNT_BITS)
        chunk = InferenceChunk("text")
        chunk.content = content
        chunk.token_count = token_count
        return chunk

    @staticmethod
    def tokens(
        token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None = None
    ) -> InferenceChunk:
        """Generated token ids; the processor needs a tokenizer for them.

        Args:
            token_ids: in the order they were generated.
            logprobs: natural log-probabilities, one entry for each id.

        Raises:
            OverflowError: an id is not in [0, 2^32).
        """
        chunk = InferenceChunk("tokens")
        chunk.token_ids = list(token_ids)
        for token in chunk.token_ids:
            _check_unsigned("token id", token, _TOKEN_BITS)
        chunk.logprobs = None if logprobs is None else list(logprobs)
        return chunk

    @staticmethod
    def finish(finish_reason: InferenceFinishReason) -> InferenceChunk:
        """The backend stopped.

        Raises:
            TypeError: no `InferenceFinishReason`.
        """
        check_kind(finish_reason, InferenceFinishReason)
        chunk = InferenceChunk("finish")
        chunk.finish_reason = finish_reason
        return chunk
