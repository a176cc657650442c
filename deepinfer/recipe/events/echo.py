"""The settings of a Responses request that its response objects repeat.

It does not know what the settings do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deepinfer.recipe.events.wire import quote_or_null, single
from deepinfer.recipe.json_text import compact


def _no_reasoning() -> dict[str, Any]:
    return {"effort": None, "summary": None}


def _plain_text() -> dict[str, Any]:
    return {"format": {"type": "text"}, "verbosity": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesEcho:
    """What a request asked for, as its responses report it; the defaults are those of no request.

    Attributes:
        instructions: as given.
        max_output_tokens: as given, before any default.
        temperature: the requested one or 1.0, not the one sampled with; single precision.
        top_p: likewise.
        top_logprobs: requested, or 0.
        user: as given.
        reasoning: JSON object with `effort` and `summary`.
        text: JSON object with `format` and `verbosity`.
        tool_choice: JSON value.
        tools: JSON objects.
    """

    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_logprobs: int = 0
    user: str | None = None
    reasoning: dict[str, Any] = field(default_factory=_no_reasoning)
    text: dict[str, Any] = field(default_factory=_plain_text)
    tool_choice: Any = "auto"
    tools: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class ResponseFrame:
    """What all response objects of one answer have in common.

    `created` is in seconds since 1970.
    """

    id: str
    model: str
    created: int
    echo: ResponsesEcho

    def to_json(
        self,
        status: str,
        items: Sequence[str] = (),
        completed: int | None = None,
        incomplete_reason: str | None = None,
        usage: str = "null",
    ) -> str:
        """A response object; `items` and `usage` are JSON text."""
        echo = self.echo
        details = "null"
        if incomplete_reason is not None:
            details = f'{{"reason":"{incomplete_reason}"}}'
        return (
            f'{{"id":{quote_or_null(self.id)},"object":"response","created_at":{self.created},'
            f'"status":"{status}","background":false,"completed_at":{compact(completed)},'
            f'"content_filters":null,"error":null,"frequency_penalty":0.0,'
            f'"incomplete_details":{details},"instructions":{quote_or_null(echo.instructions)},'
            f'"max_output_tokens":{compact(echo.max_output_tokens)},"max_tool_calls":null,'
            f'"model":{quote_or_null(self.model)},"moderation":null,'
            f'"output":[{",".join(items)}],"parallel_tool_calls":true,"presence_penalty":0.0,'
            f'"previous_response_id":null,"prompt_cache_key":null,"prompt_cache_retention":null,'
            f'"reasoning":{compact(echo.reasoning)},"safety_identifier":null,'
            f'"service_tier":"default","store":false,"temperature":{single(echo.temperature)},'
            f'"text":{compact(echo.text)},"tool_choice":{compact(echo.tool_choice)},'
            f'"tools":{compact(list(echo.tools))},"top_logprobs":{echo.top_logprobs},'
            f'"top_p":{single(echo.top_p)},"truncation":"disabled","usage":{usage},'
            f'"user":{quote_or_null(echo.user)},"metadata":{{}}}}'
        )
