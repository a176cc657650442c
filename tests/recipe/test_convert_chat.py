"""Chat Completions requests: what the wheel does not do, and rules that need no oracle."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from deepinfer.recipe import (
    ChatCompletionRequest,
    ConversionError,
    ConversionOptions,
    DeepseekV41Encoding,
    ModelVersion,
    ReasoningContentBehavior,
    SpecialTokens,
    ThinkingInitialStage,
)
from deepinfer.recipe.failures import BodyError
from deepinfer.recipe.options import ConversationRequest

MODEL = "DeepSeek-V4.1-Flash"
USER = {"role": "user", "content": "Hello"}
REJECT = ConversionOptions(reasoning_content_behavior=ReasoningContentBehavior.Reject)


def converted(
    *messages: Any, options: ConversionOptions | None = None, **members: Any
) -> ConversationRequest:
    request = ChatCompletionRequest({"model": MODEL, "messages": list(messages), **members})
    return request.convert(options or ConversionOptions())


def refused(*messages: Any, **members: Any) -> ConversionError:
    with pytest.raises(ConversionError) as caught:
        converted(*messages, **members)
    return caught.value


def tool(name: str, **members: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **members}}


def calls(*ids: str, **members: Any) -> list[dict[str, Any]]:
    function = {"name": "f", "arguments": "{}"}
    asked = [{"id": id, "type": "function", "function": function} for id in ids]
    results = [{"role": "tool", "tool_call_id": id, "content": "r"} for id in ids]
    return [{"role": "assistant", "content": None, "tool_calls": asked, **members}, *results]


def test_errors_carry_status_body_and_place():
    error = refused(USER, tools=[tool("f"), tool("two words")])
    assert error.status_code == 400
    assert error.path == "tools[1].function.name"
    body = json.loads(error.body)["error"]
    assert body["message"] == str(error)
    assert body["type"] == body["code"] == "invalid_request_error"
    assert body["param"] is None


@pytest.mark.parametrize(
    ("body", "text", "path"),
    [
        ("{", "invalid JSON request: ", ""),
        (b"\xff", "invalid JSON request: ", ""),
        ("{}", "invalid request body: missing field `messages`", ""),
        (
            {"model": MODEL, "messages": [USER, {"role": "user", "content": None}]},
            "invalid request body: content should be a string or a list",
            "messages[1].content",
        ),
        (
            {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "invalid request body: missing field `text`",
            "messages[0].content[0]",
        ),
    ],
)
def test_bodies_of_another_shape_are_value_errors_with_a_place(body, text, path):
    assert issubclass(BodyError, ValueError)
    with pytest.raises(BodyError) as caught:
        ChatCompletionRequest(body)
    assert str(caught.value).startswith(text)
    assert caught.value.path == path


def test_a_dictionary_that_json_cannot_hold_is_refused():
    for value, kind in [({1}, TypeError), (float("nan"), ValueError), (2**64, OverflowError)]:
        with pytest.raises(kind):
            ChatCompletionRequest({"model": MODEL, "messages": [], "extra": value})


def test_a_request_is_used_up_even_by_a_failed_conversion():
    request = ChatCompletionRequest({"model": "unknown", "messages": []})
    assert request.model == "unknown"
    with pytest.raises(ConversionError):
        request.convert(ConversionOptions())
    with pytest.raises(RuntimeError, match="consumed"):
        request.convert(ConversionOptions())


def test_aliases_choose_the_version():
    options = ConversionOptions().with_model_alias("mine", ModelVersion.DeepseekV4Pro)
    assert converted(USER, options=options, model="mine").model_version.name == "DeepseekV4Pro"
    assert "mine" in str(refused(USER, options=options, model="other"))


def test_more_than_one_answer_needs_leave():
    body = {"model": MODEL, "messages": [USER], "n": 3}
    assert "n = 1" in str(refused(USER, n=3))
    request = ChatCompletionRequest(body).convert(ConversionOptions(), allow_n=True)
    assert request.inference_options.n == 3
    with pytest.raises(ConversionError):
        ChatCompletionRequest({**body, "n": 0}).convert(ConversionOptions(), allow_n=True)


def test_tasks_are_read_with_leave_only():
    body = {"model": MODEL, "messages": [{**USER, "task": "title"}], "tools": [tool("f")]}
    plain = ChatCompletionRequest(body).convert(ConversionOptions())
    assert DeepseekV41Encoding().render_conversation(plain.conversation).prompt.endswith("<think>")
    asked = ChatCompletionRequest(body).convert(ConversionOptions(), allow_tasks=True)
    prompt = DeepseekV41Encoding().render_conversation(asked.conversation).prompt
    assert prompt.endswith("Hello<｜title｜>")
    assert asked.parsing_options.thinking_initial_stage is None
    assert not asked.parsing_options.parse_tool_calls
    body["messages"] = [{**USER, "task": "dance"}]
    with pytest.raises(ConversionError, match="dance"):
        ChatCompletionRequest(body).convert(ConversionOptions(), allow_tasks=True)


def test_empty_reasoning_of_a_call_is_accepted_where_reasoning_is_required():
    assert converted(USER, *calls("1", reasoning_content=""), options=REJECT)
    assert converted(USER, *calls("call_00_ET_x1"), options=REJECT)
    assert "passed back" in str(refused(USER, *calls("1"), options=REJECT))
    assert converted(USER, *calls("1"), USER, options=REJECT)


def test_missing_reasoning_is_filled_in_thinking_mode_and_dropped_outside():
    message = converted(USER, *calls("1")).conversation.messages[1]
    assert message.reasoning_content == ""
    off: dict[str, Any] = {"thinking": {"type": "disabled"}}
    message = converted(USER, *calls("1", reasoning_content="r"), **off).conversation.messages[1]
    assert message.reasoning_content is None


@pytest.mark.parametrize(
    ("content", "reasoning", "stage"),
    [
        ("pre", None, ThinkingInitialStage.ContentContinuation),
        ("", "r", ThinkingInitialStage.ReasoningContinuation),
        ("a", "r", ThinkingInitialStage.ContentContinuation),
        ("", "", ThinkingInitialStage.ReasoningStart),
    ],
)
def test_a_prefix_decides_where_parsing_begins(content, reasoning, stage):
    prefix = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    request = converted(USER, {**prefix, "prefix": True})
    assert request.parsing_options.thinking_initial_stage is stage


@pytest.mark.parametrize(
    ("members", "told"),
    [
        ({}, True),
        ({"stream": False}, True),
        ({"stream": True}, False),
        ({"stream": True, "stream_options": {}}, False),
        ({"stream": True, "stream_options": {"include_usage": True}}, True),
    ],
)
def test_streams_tell_of_usage_in_every_chunk_only_if_asked(members, told):
    assert converted(USER, **members).usage_in_every_chunk is told


def test_a_typed_image_token_is_no_image():
    typed = {"type": "text", "text": "<｜image｜> before"}
    image = {"type": "image_url", "image_url": {"url": "http://host/a.png"}}
    request = converted({"role": "user", "content": [typed, image]})
    (message,) = request.conversation.messages
    ((start, end),) = message.placeholders
    assert (start, message.content[start:end]) == (len("<｜image｜> before\n\n"), "<｜image｜>")


def test_an_image_token_without_a_spelling_leaves_the_image_with_its_message():
    tokens = SpecialTokens(image="")
    image = {"type": "image_url", "image_url": {"url": "http://host/a.png"}}
    request = ChatCompletionRequest(
        {"model": MODEL, "messages": [{"role": "user", "content": [image]}]}
    ).convert(ConversionOptions().with_special_tokens(tokens))
    (message,) = request.conversation.messages
    assert (message.content, len(message.image_sources)) == ("", 1)
    encoding = DeepseekV41Encoding().with_special_tokens(tokens)
    assert len(encoding.render_conversation(request.conversation).image_sources) == 1


def test_a_pattern_that_does_not_compile_is_named_itself():
    schema = {"type": "object", "patternProperties": {"(": {}}}
    error = refused(USER, tools=[tool("f", parameters=schema)])
    assert str(error).endswith('"(" is not a "regex"')
    assert error.path == "tools[0].function.parameters.patternProperties.("


def test_hostile_requests_take_linear_time():
    long = "x" * 1_000_000
    ids = [f"call_{i}" for i in range(10_000)]
    deep: Any = {"type": "object"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep, "b": {"$ref": "#"}}}
    start = time.process_time()
    converted({"role": "user", "content": long}, *calls(*ids), tools=[tool("f", parameters=deep)])
    assert time.process_time() - start < 3


def test_nesting_beyond_reason_is_refused_and_does_not_crash():
    deep = '{"a":' * 200 + "1" + "}" * 200
    text = f'{{"model":"{MODEL}","messages":[],"x":{deep}}}'
    with pytest.raises(ValueError, match="invalid JSON request"):
        ChatCompletionRequest(text)


def test_half_of_a_surrogate_pair_is_refused():
    for body in (
        {"model": MODEL, "messages": [{"role": "user", "content": "\ud800"}]},
        f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"\\ud800"}}]}}',
    ):
        with pytest.raises(ValueError, match="surrogate"):
            ChatCompletionRequest(body)
