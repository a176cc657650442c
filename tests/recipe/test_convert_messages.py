"""Messages requests: what differs from the wheel, and rules that need no oracle."""

from __future__ import annotations

import time
from typing import Any

import pytest

from deepinfer.recipe import ConversionError, ConversionOptions, MessagesRequest, WebSearchBehavior
from deepinfer.recipe.options import ConversationRequest

MODEL = "DeepSeek-V4.1-Flash"
USER = {"role": "user", "content": "Hello"}
SCHEMA = {"type": "object"}


def converted(
    *messages: Any, options: ConversionOptions | None = None, **members: Any
) -> ConversationRequest:
    body = {"model": MODEL, "messages": list(messages), **members}
    return MessagesRequest(body).convert(options or ConversionOptions())


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def use(id: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "f", "input": {"a": [1, 1e-7]}}


def result(id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": "r"}


def test_a_client_tool_may_say_that_it_is_one():
    request = converted(USER, tools=[{"type": "custom", "name": "f", "input_schema": SCHEMA}])
    assert [tool.name for tool in request.conversation.tools] == ["f"]


def test_the_limit_is_lowered_and_not_refused():
    assert converted(USER, max_tokens=10**6).inference_options.max_tokens == 393216


def test_arguments_are_written_as_json():
    messages = converted(USER, assistant(use("1")), user(result("1"))).conversation.messages
    assert [call.arguments for call in messages[1].tool_calls or []] == ['{"a": [1, 1e-7]}']


def test_web_search_is_refused_or_left_out():
    search = {"type": "web_search_20250305", "name": "web_search"}
    with pytest.raises(ConversionError) as caught:
        converted(USER, tools=[search])
    assert caught.value.path == "tools[0]"
    options = ConversionOptions().with_messages_web_search(WebSearchBehavior.Drop)
    assert converted(USER, tools=[search], options=options).conversation.tools == []


def test_v4_is_told_of_later_system_messages_by_a_user():
    request = converted(USER, {"role": "system", "content": "mind"}, model="DeepSeek-V4-Pro")
    assert [(m.role, m.content) for m in request.conversation.messages] == [
        ("user", "Hello"),
        ("user", "<system-reminder>\nmind\n</system-reminder>"),
    ]


def test_places_are_spelled_as_in_the_other_protocols():
    image = {"type": "image", "source": {"type": "url", "url": "ftp://host"}}
    nested = {**result("1"), "content": [image]}
    with pytest.raises(ConversionError) as caught:
        converted(USER, assistant(use("1")), user(nested))
    assert "messages.2.content.0.tool_result.content[0]" in str(caught.value)
    assert caught.value.path == "messages[2].content[0].tool_result.content[0]"


def test_every_tool_use_needs_its_result_next():
    for rest in ([], [USER], [user({"type": "text", "text": "x"}, result("1"))]):
        with pytest.raises(ConversionError, match="without `tool_result` blocks"):
            converted(USER, assistant(use("1")), *rest)


def test_ten_thousand_tool_uses_take_linear_time():
    ids = [f"toolu_{i}" for i in range(10_000)]
    start = time.process_time()
    converted(USER, assistant(*map(use, ids)), user(*map(result, ids)))
    assert time.process_time() - start < 3
