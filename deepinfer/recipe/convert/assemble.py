"""The last step of all three protocols: checked parts become a conversation request.

It does not know the protocols.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from deepinfer.recipe.conversation import (
    AssistantMessage,
    Conversation,
    Message,
    ReasoningEffort,
    UserMessage,
)
from deepinfer.recipe.convert.formats import TEXT, AnswerFormat
from deepinfer.recipe.convert.tools import ToolSet
from deepinfer.recipe.options import (
    ConversationRequest,
    ConversionOptions,
    InferenceOptions,
    ModelVersion,
    OutputConstraint,
    ParsingOptions,
    ResponsesSettings,
    ThinkingInitialStage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Everything of a request, checked."""

    messages: list[Message]
    tool_set: ToolSet
    thinking: bool
    effort: ReasoningEffort | None
    version: ModelVersion
    temperature: float
    top_p: float
    max_tokens: int | None
    stream: bool
    answer_format: AnswerFormat = TEXT
    answer_constraint: OutputConstraint | None = None
    stops: list[str] = field(default_factory=list[str])
    logprobs: bool = False
    top_logprobs: int | None = None
    seed: int | None = None
    n: int = 1
    usage_in_every_chunk: bool = True
    responses_settings: ResponsesSettings | None = None


def assemble(parts: Parts, options: ConversionOptions) -> ConversationRequest:
    """Put a conversation request together."""
    wish = parts.answer_format
    last = parts.messages[-1] if parts.messages else None
    # The answer to a quick instruction is plain text after its token, except to `action`.
    plain = isinstance(last, UserMessage) and last.task not in (None, "action")
    conversation = Conversation(
        parts.messages,
        thinking_mode=parts.thinking,
        tools=parts.tool_set.tools,
        tool_choice=parts.tool_set.choice,
        reasoning_effort=parts.effort,
        response_format="json_object" if wish.kind == "json_object" else "text",
        response_schema=wish.schema,
        response_regex=wish.regex,
    )
    inference = InferenceOptions(
        max_tokens=parts.max_tokens,
        temperature=parts.temperature,
        top_p=parts.top_p,
        logprobs=parts.logprobs,
        top_logprobs=parts.top_logprobs,
        seed=parts.seed,
        output_constraint=parts.tool_set.constraint() or parts.answer_constraint,
        n=parts.n,
    )
    parsing = ParsingOptions(
        parse_tool_calls=bool(parts.tool_set.tools) and not plain,
        starts_in_tool_calls=parts.tool_set.choice == "required",
        parse_json_output=wish.kind == "json_object",
        thinking_initial_stage=_initial_stage(last) if parts.thinking and not plain else None,
        stop_sequences=parts.stops,
        special_tokens=options.special_tokens,
        tools=parts.tool_set.tools,
    )
    return ConversationRequest(
        conversation,
        parts.version,
        inference_options=inference,
        parsing_options=parsing,
        stream=parts.stream,
        usage_in_every_chunk=parts.usage_in_every_chunk,
        responses_settings=parts.responses_settings,
    )


def _initial_stage(last: Message | None) -> ThinkingInitialStage:
    """Where the answer begins in thinking mode; a prefix moves that (recipe.md 2.10)."""
    if isinstance(last, AssistantMessage) and last.prefix:
        if last.content:
            return ThinkingInitialStage.ContentContinuation
        if last.reasoning_content:
            return ThinkingInitialStage.ReasoningContinuation
    return ThinkingInitialStage.ReasoningStart
