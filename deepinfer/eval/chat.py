"""The chat protocol as JSON: a question as the body of a request, a completion as a reply.

Knows nothing of who answers.
"""

from __future__ import annotations

from typing import Any

from deepinfer.eval.question import Call, Fields, Question, Reply, Settings

_SHOWN = 300  # characters of a completion in an error


def chat_body(question: Question, settings: Settings, model: str) -> dict[str, Any]:
    """The body of a chat request; a key that the run does not need is left out."""
    body: dict[str, Any] = {
        "model": model,
        "messages": list(question.messages),
        "max_tokens": settings.max_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
    }
    if question.tools:
        body["tools"] = list(question.tools)
    if question.schema is not None:
        schema = {"name": "answer", "schema": question.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if settings.thinking is not None:
        body["thinking"] = {"type": "enabled" if settings.thinking else "disabled"}
    if settings.effort is not None:
        body["reasoning_effort"] = settings.effort
    return body


def reply_of(completion: Fields) -> Reply:
    """The reply in a chat completion.

    Raises:
        ValueError: it is none.
    """
    try:
        choice = completion["choices"][0]
        message = choice["message"]
        usage = completion.get("usage") or {}
        details = usage.get("prompt_tokens_details") or {}
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        calls = tuple(
            Call(_text(call["function"]["name"]), _text(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        )
        return Reply(
            content=_text(message.get("content") or ""),
            reasoning=_text(reasoning),
            calls=calls,
            finish_reason=_text(choice.get("finish_reason") or "stop"),
            prompt_tokens=_count(usage.get("prompt_tokens")),
            cached_tokens=_count(
                usage.get("prompt_cache_hit_tokens", details.get("cached_tokens"))
            ),
            completion_tokens=_count(usage.get("completion_tokens")),
        )
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        shown = str(completion)[:_SHOWN]
        raise ValueError(f"no chat completion: {error!r} in {shown}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value
