"""What comes in and what goes out: plain data of one request.

Knows nothing of how a request is computed. Names are vLLM's where it has one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "error"]


@dataclass(frozen=True)
class CompletionOutput:
    """What was generated for one prompt.

    Attributes:
        text: decoded tokens, without special ones.
        token_ids: generated ids, the end token included if it was generated.
        finish_reason: "stop" (end token), "length" (limit reached) or "error".
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason


@dataclass(frozen=True)
class RequestOutput:
    """The one result of one input.

    Attributes:
        request_id: position of the input, or the name it was given.
        prompt: the text that was sent; None for a prompt of ids.
        prompt_token_ids: ids of the prompt; empty if it could not be read.
        outputs: one completion, or none if `error` is set before anything was generated.
        error: what was wrong with this input, and how to mend it.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    error: str | None = None


@dataclass(frozen=True)
class ScoreOutput:
    """Log-probabilities of one prompt's own tokens.

    Attributes:
        request_id: position of the input, or the name it was given.
        prompt_token_ids: ids of the prompt.
        logprobs: natural log-probability of every token after the first, given those before it.
        error: what was wrong with this input, and how to mend it.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    error: str | None = None

    @property
    def logprob_sum(self) -> float:
        """Sum of the log-probabilities."""
        return math.fsum(self.logprobs)

    @property
    def perplexity(self) -> float | None:
        """exp of the mean negative log-probability; None for a prompt of one token."""
        if not self.logprobs:
            return None
        try:
            return math.exp(-self.logprob_sum / len(self.logprobs))
        except OverflowError:
            return math.inf
