"""What comes in and what goes out: plain data of one request, checked where it enters.

Names and defaults are vLLM's where it has one; `shared` sampling rules are in `ops/sample`. Knows
nothing of how a request is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from deepinfer.errors import RequestError

FinishReason = Literal["stop", "length", "abort", "error"]
GREEDY_BELOW = 1e-5  # temperatures below it take the likeliest token
MAX_LOGPROBS = 1000
_MAX_STOP_STRINGS = 64
_MAX_STOP_CHARS = 16_384
_SEED_BITS = 64
_DEMANDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_JSON_OPTIONS = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")


@dataclass(frozen=True)
class StructuredOutputsParams:
    """Structured output with the names vLLM uses: exactly one of the first six.

    Attributes:
        json: a JSON Schema, as text or as the object itself.
        regex: a regular expression that the whole text matches.
        choice: the text is one of these strings.
        grammar: an EBNF (GBNF) grammar; the text is derived from its rule `root`.
        json_object: True: any JSON object.
        structural_tag: free text but for tagged parts (docs/structured-output.md has the form).
        disable_any_whitespace: JSON without white space between its tokens.
        disable_additional_properties: objects have only the properties that their schema names.
        whitespace_pattern: regex of the white space between JSON tokens.
    """

    json: str | Mapping[str, object] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, object] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in _DEMANDS if getattr(self, name) is not None]
        if self.json_object is False:
            given.remove("json_object")
        if len(given) != 1:
            raise RequestError(
                f"structured outputs {given or 'without a demand'}: give exactly one of "
                f"{', '.join(_DEMANDS)}"
            )
        if given[0] not in ("json", "json_object"):
            for name in _JSON_OPTIONS:
                if getattr(self, name):
                    raise RequestError(f"{name} is for json and json_object, not for {given[0]}")
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise RequestError("disable_any_whitespace and whitespace_pattern exclude each other")


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are chosen; every value is checked on construction.

    Attributes:
        n: completions of one prompt, 1..128.
        temperature: >= 0; below 1e-5 greedy.
        top_p: (0, 1]; smallest set of likeliest tokens whose mass reaches it.
        top_k: likeliest tokens kept; 0 or -1 = all.
        min_p: [0, 1]; least probability relative to the likeliest token.
        presence_penalty, frequency_penalty: [-2, 2], over generated tokens.
        repetition_penalty: > 0, over prompt and generated tokens; 1 = none.
        seed: None (the engine draws one and reports it), or any integer of 64 bits.
        stop: strings that end the text; the leftmost match wins and is cut off.
        stop_token_ids: ids that end it; kept in `token_ids`, not in the text.
        bad_words: strings that must not be generated (as token sequences).
        include_stop_str_in_output: keep the stop string in the text.
        ignore_eos: go on after the end token.
        max_tokens: tokens to generate, >= 1.
        min_tokens: no end or stop id before so many tokens.
        logprobs: entries a generated token, 0 = only the chosen one, -1 = whole vocabulary.
        prompt_logprobs: the same for the prompt's tokens.
        logprobs_mode: "raw" (of the model) or "processed" (drawn from).
        detokenize: produce text.
        skip_special_tokens: leave special tokens out of the text.
        logit_bias: token id -> addition to its logit, [-100, 100].
        allowed_token_ids: the only ids that may be generated.
        forced_token_ids: teacher forcing; -1 leaves a place free.
        structured_outputs: what the text must satisfy; it begins after `</think>` if the prompt
            ends in open reasoning, else at once.
        so_args: the same as the original engine spells it (`schema_type`, `schema`,
            `trigger_token_ids`, `bound_token_id`); read when the request comes in.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    detokenize: bool = True
    skip_special_tokens: bool = True
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    forced_token_ids: Sequence[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    so_args: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_counts()
        self._check_lists()
        self._check_structure()
        if self.min_tokens > self.max_tokens:
            raise RequestError(f"min_tokens {self.min_tokens} exceeds max_tokens {self.max_tokens}")
        if self.logprobs_mode not in ("raw", "processed"):
            raise RequestError(f"logprobs_mode {self.logprobs_mode!r}: use 'raw' or 'processed'")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken each time."""
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def _check_ranges(self) -> None:
        _range("temperature", self.temperature, 0, math.inf)
        _range("top_p", self.top_p, 0, 1, open_low=True)
        _range("min_p", self.min_p, 0, 1)
        _range("presence_penalty", self.presence_penalty, -2, 2)
        _range("frequency_penalty", self.frequency_penalty, -2, 2)
        _range("repetition_penalty", self.repetition_penalty, 0, math.inf, open_low=True)

    def _check_counts(self) -> None:
        _integer("n", self.n, 1, 128)
        _integer("top_k", self.top_k, -1)
        _integer("max_tokens", self.max_tokens, 1)
        _integer("min_tokens", self.min_tokens, 0)
        if self.seed is not None:
            _integer("seed", self.seed, -(1 << (_SEED_BITS - 1)), (1 << _SEED_BITS) - 1)
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _integer(name, value, -1, MAX_LOGPROBS)

    def _check_structure(self) -> None:
        given = self.structured_outputs
        if given is not None and not isinstance(given, StructuredOutputsParams):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"structured_outputs {given!r}: use StructuredOutputsParams")
        if given is not None and self.so_args is not None:
            raise RequestError("structured_outputs and so_args exclude each other")
        if given is None and self.so_args is None:
            return
        if self.ignore_eos or self.forced_token_ids is not None:
            name = "ignore_eos" if self.ignore_eos else "forced_token_ids"
            raise RequestError(f"{name} and structured output exclude each other; drop one")

    def _check_lists(self) -> None:
        strings = self.stop_strings
        if any(not isinstance(text, str) or not text for text in strings):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"stop {self.stop!r}: use non-empty strings")
        if len(strings) > _MAX_STOP_STRINGS or any(len(s) > _MAX_STOP_CHARS for s in strings):
            raise RequestError(
                f"stop: at most {_MAX_STOP_STRINGS} strings of {_MAX_STOP_CHARS} characters"
            )
        if any(not isinstance(word, str) or not word for word in self.bad_words or ()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"bad_words {self.bad_words!r}: use non-empty strings")
        for name in ("stop_token_ids", "allowed_token_ids"):
            for token in getattr(self, name) or ():
                _integer(f"{name} entry", token, 0)
        for token in self.forced_token_ids or ():
            _integer("forced_token_ids entry", token, -1)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise RequestError("allowed_token_ids is empty: leave it out to allow every token")
        for token, bias in (self.logit_bias or {}).items():
            _integer("logit_bias key", token, 0)
            _range(f"logit_bias of token {token}", bias, -100, 100)


def _range(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    good = False
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        good = low <= value <= high and not (open_low and value == low)
    if not good:
        left = "(" if open_low else "["
        raise RequestError(f"{name} {value!r}: use a number in {left}{low:g}, {high:g}]")


def _integer(name: str, value: object, low: int, high: int | None = None) -> None:
    good = False
    if isinstance(value, int) and not isinstance(value, bool):
        good = value >= low and (high is None or value <= high)
    if not good:
        bound = f"an integer >= {low}" if high is None else f"an integer in [{low}, {high}]"
        raise RequestError(f"{name} {value!r}: use {bound}")


class Logprob(NamedTuple):
    """One entry: natural log-probability, and the token's rank (1 = likeliest)."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass(frozen=True)
class CompletionOutput:
    """One continuation of a prompt.

    Attributes:
        index: which of the `n`.
        text: decoded tokens up to the stop, without special ones unless asked for.
        token_ids: generated ids, an end or stop id included.
        cumulative_logprob: sum over generated tokens; None unless log-probabilities are asked for.
        logprobs: for every generated token, id -> entry; None unless asked for.
        finish_reason: "stop", "length", "abort" or "error"; None while it goes on.
        stop_reason: the stop string or id that ended it, None for the end token.
        seed: the seed that reproduces it.
        message: of a conversation, what `text` says in the form of chat completions: `role`,
            `content` and as there are `reasoning_content` and `tool_calls`.
        structured: of structured output, the part of the text that had to satisfy the demand; None
            if that never began, or has no single beginning (tool calls).
        violation: of structured output that ended by itself, what a reader other than the one that
            enforced it says against `structured`; None if nothing.
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None = None
    logprobs: tuple[Mapping[int, Logprob], ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    seed: int | None = None
    message: Mapping[str, Any] | None = None
    structured: str | None = None
    violation: str | None = None


@dataclass(frozen=True)
class RequestMetrics:
    """Times in seconds on the engine's clock, None until they happen; and what it took.

    `drafts_verified_at`, `drafts_accepted_at`: drafts that were checked, and that were right, by
    place in the block, the first draft first; () without speculation.
    """

    arrival: float
    first_token: float | None = None
    finished: float | None = None
    preemptions: int = 0
    drafts_verified_at: tuple[int, ...] = ()
    drafts_accepted_at: tuple[int, ...] = ()

    @property
    def drafts_verified(self) -> int:
        """Drafts that were checked."""
        return sum(self.drafts_verified_at)

    @property
    def drafts_accepted(self) -> int:
        """Drafts that were right."""
        return sum(self.drafts_accepted_at)

    def joined(self, other: RequestMetrics) -> RequestMetrics:
        """Of two completions of one prompt together."""
        ends = [m.finished for m in (self, other) if m.finished is not None]
        starts = [m.first_token for m in (self, other) if m.first_token is not None]
        return RequestMetrics(
            min(self.arrival, other.arrival),
            min(starts, default=None),
            max(ends, default=None),
            self.preemptions + other.preemptions,
            tuple(map(sum, zip(self.drafts_verified_at, other.drafts_verified_at, strict=True))),
            tuple(map(sum, zip(self.drafts_accepted_at, other.drafts_accepted_at, strict=True))),
        )


@dataclass(frozen=True)
class RequestOutput:
    """The one result of one input.

    Attributes:
        request_id: name of the request.
        prompt: the text that was sent; None for a prompt of ids.
        prompt_token_ids: ids of the prompt; empty if it could not be read.
        outputs: one completion for each of `n`; none if `error` came before anything was generated.
        finished: nothing more will come.
        prompt_logprobs: None for the first token, then id -> entry for each; None unless asked for.
        num_cached_tokens: prompt tokens that were not computed again.
        metrics: times.
        error: what was wrong with this input, and how to mend it.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool = True
    prompt_logprobs: tuple[Mapping[int, Logprob] | None, ...] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    error: str | None = None


@dataclass(frozen=True)
class Request:
    """What the engine core computes: ids in, ids out.

    Attributes:
        request_id: unique among requests that are not finished.
        prompt_token_ids: checked ids, at least one.
        params: sampling; `n` is 1 here (the border makes `n` requests).
        seed: 64-bit seed of the noise, never None.
        sample: which of the border's `n` this is (part of the noise counter).
        priority: smaller goes first.
        arrival: seconds on the engine's clock.
        stop_ids: ids that end it, the end token included unless ignored.
        bad_words: token sequences that must not be generated.
        cache_salt: pages are shared only among requests of one salt.
        constrained: masks say which tokens may come.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    sample: int = 0
    priority: int = 0
    arrival: float = 0.0
    stop_ids: frozenset[int] = field(default_factory=frozenset[int])
    bad_words: tuple[tuple[int, ...], ...] = ()
    cache_salt: bytes = b""
    constrained: bool = False


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
