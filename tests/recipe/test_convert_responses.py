"""Responses requests: what differs from the wheel, and rules that need no oracle."""

from __future__ import annotations

import time
from typing import Any

import pytest

from deepinfer.recipe import ConversionError, ConversionOptions, ResponsesRequest
from deepinfer.recipe.options import ConversationRequest

MODEL = "DeepSeek-V4.1-Flash"
USER = {"role": "user", "content": "Hello"}
REASONING = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "thought"}]}


def converted(*items: Any, **members: Any) -> ConversationRequest:
    body = {"model": MODEL, "input": list(items), **members}
    return ResponsesRequest(body).convert(ConversionOptions())


def call(id: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"}


def output(id: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": id}


def function(name: str, **members: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, **members}


def test_reasoning_text_and_calls_of_a_turn_become_one_message():
    said = {"role": "assistant", "content": "said"}
    messages = converted(USER, REASONING, said, call("1"), output("1")).conversation.messages
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    assert messages[1].reasoning_content == "thought"
    assert messages[1].content == "said"
    assert [asked.id for asked in messages[1].tool_calls or []] == ["1"]


def test_calls_keep_their_order_whatever_their_ids():
    messages = converted(USER, call("b"), call("a"), output("a"), output("b")).conversation.messages
    assert [asked.id for asked in messages[1].tool_calls or []] == ["b", "a"]
    assert [message.tool_call_id for message in messages[2:]] == ["b", "a"]


def test_tools_of_namespaces_get_names_of_their_own():
    namespace = {"type": "namespace", "name": "n", "tools": [function("f")]}
    body = {"model": MODEL, "input": "x", "tools": [namespace, namespace]}
    names = ResponsesRequest(body).namespace_tool_map(ConversionOptions())
    assert names == {"n::f": ("n", "f"), "n::f_1": ("n", "f")}
    tools = ResponsesRequest(body).convert(ConversionOptions()).conversation.tools
    assert [tool.name for tool in tools] == list(names)


def test_the_patch_tool_takes_one_text():
    request = converted(USER, tools=[{"type": "custom", "name": "apply_patch"}])
    (tool,) = request.conversation.tools
    assert tool.parameters["required"] == ["input"]
    assert "*** Begin Patch" in (tool.description or "")
    assert request.responses_settings.custom_tools == {"apply_patch"}


def test_found_tools_join_the_conversation_where_they_were_found():
    search = {"type": "tool_search_call", "call_id": "1", "arguments": {"q": "x"}}
    found = {"type": "tool_search_output", "call_id": "1", "tools": [function("g")]}
    request = converted(USER, search, found, tools=[function("f")])
    assert [(t.name, t.defer_loading) for t in request.conversation.tools] == [
        ("f", False),
        ("g", True),
    ]
    roles = [message.role for message in request.conversation.messages]
    assert roles == ["user", "assistant", "tool", "system"]


def test_echo_repeats_what_the_request_says():
    body = {
        "model": MODEL,
        "input": "x",
        "temperature": 0.5,
        "reasoning": {"effort": "low", "generate_summary": "auto"},
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "tool_choice": {"type": "function", "name": "f", "other": 1},
        "tools": [function("f"), {"type": "unknown"}, {"type": "web_search"}],
    }
    echo = ResponsesRequest(body).echo()
    assert (echo.temperature, echo.top_p, echo.top_logprobs) == (0.5, 1.0, 0)
    assert echo.reasoning == {"effort": "low", "summary": "auto"}
    assert echo.text == {"format": {"type": "json_object"}, "verbosity": "low"}
    assert echo.tool_choice == {"type": "function", "name": "f"}
    assert [tool["type"] for tool in echo.tools] == ["function", "web_search"]


def test_echo_of_a_bare_request_is_that_of_no_request():
    echo = ResponsesRequest({"model": MODEL, "input": "x"}).echo()
    assert echo == type(echo)()


def test_a_result_without_a_call_is_refused_at_its_place():
    with pytest.raises(ConversionError) as caught:
        converted(USER, output("1"))
    assert caught.value.path == "input[1].call_id"


def test_ten_thousand_calls_take_linear_time():
    ids = [f"call_{i}" for i in range(10_000)]
    start = time.process_time()
    converted(USER, *map(call, ids), *map(output, ids))
    assert time.process_time() - start < 3
