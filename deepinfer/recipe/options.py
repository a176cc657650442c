"""Options of conversion, and what conversion yields beside the conversation.

It does not know the protocols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from deepinfer.recipe.checks import check_flag, check_text
from deepinfer.recipe.conversation import Conversation, SpecialTokens, ToolDefinition
from deepinfer.recipe.failures import ConversionError

MAX_OUTPUT_TOKENS: Final = 393216  # 384 Ki, the most that the model may answer (recipe.md 4.1)
# Output limits of requests that set none (recipe.md 4.3).
DEFAULT_ANSWER_TOKENS: Final = 8192
DEFAULT_THINKING_TOKENS: Final = 65536
DEFAULT_MAX_EFFORT_TOKENS: Final = 131072
_COUNT_BITS = 32


class ModelVersion(Enum):
    """The model that a conversation is for; it selects the prompt encoding."""

    DeepseekV4Pro = "DeepSeek-V4-Pro"
    DeepseekV41Flash = "DeepSeek-V4.1-Flash"

    def __str__(self) -> str:
        return f"ModelVersion.{self.name}"


class WebSearchBehavior(Enum):
    """What to do with web search, which is the server's tool and not here."""

    Drop = "drop"
    Reject = "reject"


class ReasoningContentBehavior(Enum):
    """What to do when the history misses reasoning that had to be passed back."""

    FillEmpty = "fill_empty"
    Reject = "reject"


class ThinkingInitialStage(Enum):
    """Where in the answer parsing begins in thinking mode."""

    ReasoningStart = "reasoning_start"
    ReasoningContinuation = "reasoning_continuation"
    ContentContinuation = "content_continuation"

    def starts_in_reasoning(self) -> bool:
        """Whether the answer begins with reasoning."""
        return self is not ThinkingInitialStage.ContentContinuation


def _default_models() -> dict[str, ModelVersion]:
    return {version.value: version for version in ModelVersion}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionOptions:
    """How requests are converted. The `with_` methods return changed copies.

    Attributes:
        default_thinking_mode: thinking mode of requests that do not say.
        reasoning_content_behavior: what to do about missing reasoning.
        responses_web_search: web search in Responses requests.
        messages_web_search: web search in Messages requests.
        thinking_max_tokens_upper_bound: the most output tokens that a request may ask for in
            thinking mode; chat and Responses refuse more, Messages lowers it.
        non_thinking_max_tokens_upper_bound: the same outside thinking mode.
        model_versions_by_name: accepted model names.
        special_tokens: spellings of the special tokens.

    Raises:
        TypeError: `default_thinking_mode` is no bool.
        OverflowError: a bound outside [0, 2^32).
    """

    default_thinking_mode: bool = True
    reasoning_content_behavior: ReasoningContentBehavior = ReasoningContentBehavior.FillEmpty
    responses_web_search: WebSearchBehavior = WebSearchBehavior.Drop
    messages_web_search: WebSearchBehavior = WebSearchBehavior.Reject
    thinking_max_tokens_upper_bound: int = MAX_OUTPUT_TOKENS
    non_thinking_max_tokens_upper_bound: int = MAX_OUTPUT_TOKENS
    model_versions_by_name: dict[str, ModelVersion] = field(default_factory=_default_models)
    special_tokens: SpecialTokens = field(default_factory=SpecialTokens)

    def __post_init__(self) -> None:
        check_flag("default_thinking_mode", self.default_thinking_mode)
        for bound in (
            self.thinking_max_tokens_upper_bound,
            self.non_thinking_max_tokens_upper_bound,
        ):
            if not 0 <= bound < 1 << _COUNT_BITS:
                raise OverflowError(f"a bound of {bound} tokens is not in [0, 2^{_COUNT_BITS})")
        object.__setattr__(self, "model_versions_by_name", dict(self.model_versions_by_name))

    def with_default_thinking_mode(self, default_thinking_mode: bool) -> ConversionOptions:
        """A copy with another default thinking mode."""
        return replace(self, default_thinking_mode=default_thinking_mode)

    def with_reasoning_content_behavior(
        self, reasoning_content_behavior: ReasoningContentBehavior
    ) -> ConversionOptions:
        """A copy that handles missing reasoning otherwise."""
        return replace(self, reasoning_content_behavior=reasoning_content_behavior)

    def with_responses_web_search(
        self, responses_web_search: WebSearchBehavior
    ) -> ConversionOptions:
        """A copy that handles web search of Responses otherwise."""
        return replace(self, responses_web_search=responses_web_search)

    def with_messages_web_search(self, messages_web_search: WebSearchBehavior) -> ConversionOptions:
        """A copy that handles web search of Messages otherwise."""
        return replace(self, messages_web_search=messages_web_search)

    def with_special_tokens(self, special_tokens: SpecialTokens) -> ConversionOptions:
        """A copy with other spellings of special tokens."""
        return replace(self, special_tokens=special_tokens)

    def with_model_alias(self, model: str, model_version: ModelVersion) -> ConversionOptions:
        """A copy that also accepts `model` as a name of `model_version`."""
        names = {**self.model_versions_by_name, model: model_version}
        return replace(self, model_versions_by_name=names)

    def with_model_versions_by_name(
        self, model_versions_by_name: dict[str, ModelVersion]
    ) -> ConversionOptions:
        """A copy that accepts these model names and no others."""
        return replace(self, model_versions_by_name=model_versions_by_name)

    def with_thinking_max_tokens_upper_bound(
        self, thinking_max_tokens_upper_bound: int
    ) -> ConversionOptions:
        """A copy with another bound of output tokens in thinking mode."""
        return replace(self, thinking_max_tokens_upper_bound=thinking_max_tokens_upper_bound)

    def with_non_thinking_max_tokens_upper_bound(
        self, non_thinking_max_tokens_upper_bound: int
    ) -> ConversionOptions:
        """A copy with another bound of output tokens outside thinking mode."""
        bound = non_thinking_max_tokens_upper_bound
        return replace(self, non_thinking_max_tokens_upper_bound=bound)

    def max_tokens_upper_bound(self, thinking: bool) -> int:
        """The bound that holds in this mode."""
        if thinking:
            return self.thinking_max_tokens_upper_bound
        return self.non_thinking_max_tokens_upper_bound


@dataclass(frozen=True, slots=True)
class OutputConstraint:
    """What the output must match, for backends that can enforce it.

    Attributes:
        kind: `json`, `regex`, `tool_call` or `tool_call_required`.
        schema: a JSON Schema as text, or empty for any JSON value; the regular expression; or
            the tools as a JSON array of chat function tools, deferred ones with
            `"defer_loading":true`.
    """

    kind: str
    schema: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceOptions:
    """What a request says about inference. None means that it says nothing.

    Attributes:
        max_tokens: most output tokens; `ConversationRequest.resolve_max_tokens` has the default.
        temperature: 1.0 in thinking mode, else what was asked for or 1.0.
        top_p: the value to use with the model (recipe.md 2.17).
        logprobs: whether log-probabilities are wanted.
        top_logprobs: how many alternatives a token, 0..20.
        seed: in [0, 2^63).
        output_constraint: what the output must match.
        n: how many answers; not in the wheel, and 1 unless conversion was told to allow more.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    seed: int | None = None
    output_constraint: OutputConstraint | None = None
    n: int = 1


class ParsingOptions:
    """How the answer is parsed. All settings may be changed later.

    Args:
        parse_tool_calls: read tool calls; otherwise their markup is text.
        starts_in_tool_calls: the prompt has opened the block of calls; goes before
            `thinking_initial_stage`.
        parse_json_output: find JSON in the answer and blank out what surrounds it.
        thinking_initial_stage: where parsing begins in thinking mode; None outside of it.
        stop_sequences: texts that end the answer.
        special_tokens: spellings of the special tokens.
        lenient: repair malformed calls of known kinds; not in the wheel.
        tools: those that may be called; their schemas help to repair calls. Not in the wheel.
    """

    __slots__ = (
        "_special_tokens",
        "_stop_sequences",
        "lenient",
        "parse_json_output",
        "parse_tool_calls",
        "starts_in_tool_calls",
        "thinking_initial_stage",
        "tools",
    )

    def __init__(
        self,
        *,
        parse_tool_calls: bool = True,
        starts_in_tool_calls: bool = False,
        parse_json_output: bool = False,
        thinking_initial_stage: ThinkingInitialStage | None = None,
        stop_sequences: Sequence[str] | None = None,
        special_tokens: SpecialTokens | None = None,
        lenient: bool = False,
        tools: Sequence[ToolDefinition] = (),
    ) -> None:
        self.parse_tool_calls = parse_tool_calls
        self.starts_in_tool_calls = starts_in_tool_calls
        self.parse_json_output = parse_json_output
        self.thinking_initial_stage = thinking_initial_stage
        self.stop_sequences = () if stop_sequences is None else stop_sequences
        self.special_tokens = SpecialTokens() if special_tokens is None else special_tokens
        self.lenient = lenient
        self.tools = tuple(tools)

    @property
    def stop_sequences(self) -> list[str]:
        """Texts that end the answer; the one that is complete first counts."""
        return list(self._stop_sequences)

    @stop_sequences.setter
    def stop_sequences(self, value: Sequence[str]) -> None:
        given: object = value
        if isinstance(given, str):
            raise TypeError("stop_sequences must be a sequence of texts, not one text")
        for text in value:
            check_text("a stop sequence", text)
        self._stop_sequences = tuple(value)

    @property
    def special_tokens(self) -> SpecialTokens:
        """Spellings of the special tokens."""
        return self._special_tokens

    @special_tokens.setter
    def special_tokens(self, value: SpecialTokens) -> None:
        self._special_tokens = value


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesSettings:
    """What answers to a Responses request need to know of it.

    Attributes:
        echo: settings that responses repeat, as the keywords of `ResponsesEcho`.
        namespace_tool_map: function name to (namespace, name in it).
        custom_tools: names of tools with a text as their input.
        search_tools: names of tools that search for further tools.
    """

    echo: Mapping[str, Any] = field(default_factory=dict[str, Any])
    namespace_tool_map: Mapping[str, tuple[str, str]] = field(
        default_factory=dict[str, tuple[str, str]]
    )
    custom_tools: frozenset[str] = frozenset()
    search_tools: frozenset[str] = frozenset()


class ConversationRequest:
    """A conversation with all that is needed to answer it.

    Args:
        conversation: the conversation.
        model_version: the model it is for.
        inference_options: from conversion; empty by default.
        parsing_options: from conversion; those of a plain `ParsingOptions()` by default.
        stream: whether the answer is wanted as a stream.
        usage_in_every_chunk: whether chat chunks before the last say that usage is null.
        responses_settings: of a Responses request.
    """

    __slots__ = (
        "conversation",
        "inference_options",
        "model_version",
        "parsing_options",
        "responses_settings",
        "stream",
        "usage_in_every_chunk",
    )

    def __init__(
        self,
        conversation: Conversation,
        model_version: ModelVersion,
        *,
        inference_options: InferenceOptions | None = None,
        parsing_options: ParsingOptions | None = None,
        stream: bool = False,
        usage_in_every_chunk: bool = True,
        responses_settings: ResponsesSettings | None = None,
    ) -> None:
        self.conversation = conversation
        self.model_version = model_version
        self.inference_options = inference_options or InferenceOptions()
        self.parsing_options = parsing_options or ParsingOptions()
        self.stream = stream
        self.usage_in_every_chunk = usage_in_every_chunk
        self.responses_settings = responses_settings or ResponsesSettings()

    def resolve_max_tokens(self, prompt_tokens: int, context_limit: int) -> int:
        """The output limit to give to the backend (recipe.md 4.3).

        Args:
            prompt_tokens: tokens of the prompt, every image counted in full.
            context_limit: tokens that the context of the model holds.

        Returns:
            The requested limit, or the default lowered to what the context leaves, at least 1.

        Raises:
            ConversionError: prompt and requested limit together exceed the context.
            OverflowError: a negative count.
        """
        if prompt_tokens < 0 or context_limit < 0:
            raise OverflowError(f"counts of {prompt_tokens} and {context_limit} tokens")
        requested = self.inference_options.max_tokens
        total = prompt_tokens + (requested or 0)
        if total > context_limit:
            raise ConversionError(
                f"This model's maximum context length is {context_limit} tokens. However, you "
                f"requested {total} tokens ({prompt_tokens} in the messages, {requested or 0} in "
                "the completion). Please reduce the length of the messages or completion."
            )
        wanted = self._default_max_tokens() if requested is None else requested
        return max(min(wanted, context_limit - prompt_tokens), 1)

    def _default_max_tokens(self) -> int:
        if not self.conversation.thinking_mode:
            return DEFAULT_ANSWER_TOKENS
        if self.conversation.reasoning_effort == "max":
            return DEFAULT_MAX_EFFORT_TOKENS
        return DEFAULT_THINKING_TOKENS
