"""Events and complete responses of the three protocols, by themselves."""

from __future__ import annotations

import json
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer import recipe
from deepinfer.recipe import (
    ChatCompletionChunkGenerator,
    ChatCompletionResponse,
    InferenceChunk,
    InferenceFinishReason,
    MessagesChunkGenerator,
    MessagesResponse,
    ParsingOptions,
    PromptUsage,
    ResponsesChunkGenerator,
    ResponsesEcho,
    ResponsesResponse,
    StreamProcessor,
)
from deepinfer.recipe.events import sse_comment, sse_done, sse_frame
from deepinfer.recipe.events.calls import CallIds
from deepinfer.recipe.events.items import CustomInput
from deepinfer.recipe.events.wire import normalised, single
from deepinfer.recipe.json_text import compact, short_float
from tests.recipe import outputs
from tests.recipe.oracle import wheel
from tests.recipe.outputs import (
    MODEL,
    PROTOCOLS,
    Setting,
    block,
    cut,
    invoke,
    parameter,
    tell,
)

RESPONSES = (ChatCompletionResponse, ResponsesResponse, MessagesResponse)
NAMES = ("ChatCompletionResponse", "ResponsesResponse", "MessagesResponse")


def run(generator, *texts, finish="Stop", **options):
    processor = StreamProcessor(generator, ParsingOptions(**options))
    events = [event for text in texts for event in processor.push(InferenceChunk.text(text, 1))]
    reason = getattr(InferenceFinishReason, finish)
    return events + processor.push(InferenceChunk.finish(reason))


# JSON text.


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back(value):
    assert float(short_float(value)) == value


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_single_precision_numbers_read_back_and_are_shortest(value):
    text = single(value)
    assert struct.pack("f", float(text)) == struct.pack("f", value)
    digits = text.lstrip("-").split("e")[0].replace(".", "").strip("0")
    assert len(digits) <= 9


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-5, "0.00001"),
        (-1.5e-5, "-0.000015"),
        (1e-6, "1e-6"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e+16"),
        (-0.0, "-0.0"),
        (5e-324, "5e-324"),
    ],
)
def test_numbers_are_written_as_by_the_wheel(value, text):
    assert short_float(value) == text


@given(st.floats(1e-12, 1e20) | st.floats(-1e20, -1e-12) | st.integers(-(2**70), 2**70))
def test_tool_input_of_the_messages_protocol_is_normalised_as_by_the_wheel(value):
    text = outputs.block(invoke("f", parameter("a", repr(value), "false")))
    setting = Setting("messages", thinking=False)
    assert tell(recipe, setting, [text]).response == tell(wheel(), setting, [text]).response


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1", "1e400", "NaN", "Infinity", '"\\ud800"', '"a\nb"', "{} x", "01", "[" * 100_000],
)
def test_what_is_no_json_is_not_normalised(text):
    assert normalised(text) is None


def test_normalised_json_keeps_the_order_of_keys_and_the_last_of_equal_ones():
    assert normalised(' {"b": 1, "a": [1.50, -0, 1E5], "b": null} ') == (
        '{"b":null,"a":[1.5,-0.0,100000.0]}'
    )


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=8))
def test_compact_json_is_what_the_library_writes(value):
    expected = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert compact(value) == expected


# Ids.


def test_ids_of_calls_say_their_place_and_whether_thinking_was_empty():
    ids = CallIds(random.Random(1))
    first, second = ids.next(False), ids.next(True)
    assert first.startswith("call_00_")
    assert second.startswith("call_01_ET_")
    assert len(first) == len("call_00_") + 24
    assert first[-4:].isdigit()
    assert first[8:].isalnum()
    assert CallIds(random.Random(1)).next(False) == first


@pytest.mark.parametrize(("text", "marked"), [("</think>", True), ("r</think>", False)])
def test_calls_after_empty_thinking_are_marked(text, marked):
    generator = ChatCompletionChunkGenerator("id", "m", True)
    stage = recipe.ThinkingInitialStage.ReasoningStart
    events = run(generator, text + outputs.one_call(), thinking_initial_stage=stage)
    (call,) = [json.loads(e.to_json()) for e in events if "call_00" in e.to_json()]
    call_id = call["choices"][0]["delta"]["tool_calls"][0]["id"]
    assert call_id.startswith("call_00_ET_") == marked


# Chat.


def test_a_chat_answer_that_is_cut_off_ends_with_length_also_after_calls():
    generator = ChatCompletionChunkGenerator("id", "m", False)
    events = run(generator, outputs.one_call(), finish="Length")
    assert json.loads(events[-1].to_json())["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("reasoning", [None, "r"])
@pytest.mark.parametrize("content", ["pre", ""])
def test_prefix_completions_begin_as_by_the_wheel(content, reasoning):
    prefix = {"role": "assistant", "content": content, "prefix": True}
    if reasoning is not None:
        prefix["reasoning_content"] = reasoning
    messages = [{"role": "user", "content": "q"}, prefix]
    body = {"model": outputs.MODEL, "messages": messages}
    module = wheel()
    request = module.ChatCompletionRequest(body).convert(module.ConversionOptions())
    theirs = module.StreamProcessor(
        module.ChatCompletionRequest.chunk_generator(request, "id", "m"), request.parsing_options
    )
    stage = recipe.ThinkingInitialStage[str(request.parsing_options.thinking_initial_stage)[21:]]
    inside = stage is recipe.ThinkingInitialStage.ContentContinuation
    generator = ChatCompletionChunkGenerator("id", "m", True, starts_in_content=inside)
    ours = StreamProcessor(generator, ParsingOptions(thinking_initial_stage=stage))
    for text in ("\nx", "</think>\ny"):
        expected = theirs.push(module.InferenceChunk.text(text))
        told = ours.push(InferenceChunk.text(text))
        assert [outputs.names_blanked(e.to_json()) for e in told] == [
            outputs.names_blanked(e.to_json()) for e in expected
        ]


def test_several_choices_add_up_to_one_response():
    response = ChatCompletionResponse("id", "m", 7, 0, 0)
    streams = []
    for index, text in ((1, "b"), (0, "a")):
        generator = ChatCompletionChunkGenerator("id", "m", False, choice=index)
        processor = StreamProcessor(generator, ParsingOptions())
        usage = InferenceChunk.ready(prompt_usage=PromptUsage(prompt_tokens=4))
        finish = InferenceChunk.finish(InferenceFinishReason.Stop)
        chunks = [usage, InferenceChunk.text(text, 2), finish]
        streams.append([event for chunk in chunks for event in processor.push(chunk)])
    for events in zip(*streams, strict=True):
        for event in events:
            response.accumulate(event)
    told = json.loads(response.to_json())
    contents = [(each["index"], each["message"]["content"]) for each in told["choices"]]
    assert contents == [(0, "a"), (1, "b")]
    assert told["usage"]["completion_tokens"] == 4
    assert told["usage"]["prompt_tokens"] == 4


# All protocols.


@pytest.mark.parametrize(("ours", "name"), list(zip(RESPONSES, NAMES, strict=True)))
def test_an_empty_response_is_the_wheels(ours, name):
    theirs = getattr(wheel(), name)
    arguments = ("i\u2028", 'm"', 77, 10, 4)
    assert ours(*arguments).to_json() == theirs(*arguments).to_json()
    assert ours.sse_done_data() == theirs.sse_done_data()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_response_after_every_event_is_the_wheels(protocol):
    text = "r</think>hi\n\n" + block(invoke("f", parameter("a", "x"), parameter("b", "1", "false")))
    for thinking in (True, False):
        setting = Setting(protocol, thinking)
        for chunks in (cut(text, 5), cut(text[:90], 4)):
            theirs = tell(wheel(), setting, chunks, states=True)
            assert tell(recipe, setting, chunks, states=True) == theirs
            assert len(theirs.states) == len(theirs.events)


@pytest.mark.parametrize("response", RESPONSES)
def test_a_response_takes_events_of_its_own_protocol_only(response):
    generators = (
        ChatCompletionChunkGenerator("id", "m", True),
        ResponsesChunkGenerator("id", "m", True),
        MessagesChunkGenerator("id", "m", True),
    )
    for generator, own in zip(generators, RESPONSES, strict=True):
        (event, *_) = run(generator, "x")
        if own is not response:
            with pytest.raises(TypeError, match="expected"):
                response("id", "m", 0, 0, 0).accumulate(event)


def test_events_are_framed_for_the_wire():
    chat = run(ChatCompletionChunkGenerator("id", "m", False, created=1), "a\n")
    name = ChatCompletionResponse.sse_event_name(chat[1])
    frame = sse_frame(chat[1], name)
    assert frame.startswith('data: {"id":"id"')
    assert frame.endswith("}\n\n")
    assert frame.count("\n") == 2
    (start, *_) = run(MessagesChunkGenerator("id", "m", False), "a")
    named = sse_frame(start, MessagesResponse.sse_event_name(start))
    assert named.startswith("event: message_start\ndata: {")
    assert sse_done(ChatCompletionResponse.sse_done_data()) == "data: [DONE]\n\n"
    assert sse_done(MessagesResponse.sse_done_data()) == ""
    assert sse_comment("keep-alive") == ": keep-alive\n\n"


@pytest.mark.parametrize("asked", [None, False, True])
def test_chunks_say_that_usage_is_null_where_the_request_asked_for_usage(asked):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    if asked is not None:
        body["stream_options"] = {"include_usage": asked}
    request = recipe.ChatCompletionRequest(body)
    converted = request.convert(recipe.ConversionOptions())
    generator = request.chunk_generator(converted, "id", "m")
    *chunks, last = [json.loads(event.to_json()) for event in run(generator, "r</think>a")]
    assert all(("usage" in chunk) == (asked is True) for chunk in chunks)
    assert last["usage"]["completion_tokens"] == 1


# Messages.


def test_the_signature_of_thinking_can_be_chosen():
    generator = MessagesChunkGenerator("id", "m", True).with_signature("signed")
    stage = recipe.ThinkingInitialStage.ReasoningStart
    events = [e.to_json() for e in run(generator, "r</think>x", thinking_initial_stage=stage)]
    assert any('"signature_delta","signature":"signed"' in event for event in events)


@pytest.mark.parametrize(
    ("finish", "text", "reason"),
    [
        ("Stop", "a", "end_turn"),
        ("Length", "a", "max_tokens"),
        ("ContentFilter", "a", "refusal"),
        ("Stop", outputs.one_call(), "tool_use"),
        ("Stop", "aSTOP", "stop_sequence"),
    ],
)
def test_stop_reasons_of_messages(finish, text, reason):
    setting = Setting("messages", False, finish, options={"stop_sequences": ["STOP"]})
    told = json.loads(tell(recipe, setting, [text]).response)
    assert told["stop_reason"] == reason
    assert told["stop_sequence"] == ("STOP" if reason == "stop_sequence" else None)


# Responses.


def test_sequence_numbers_count_from_zero_without_gaps():
    told = tell(recipe, Setting("responses"), ["r</think>a", outputs.one_call()])
    numbers = [json.loads(event)["sequence_number"] for event in told.events]
    assert numbers == list(range(len(numbers)))


def test_response_objects_repeat_the_settings_of_the_request():
    echo = ResponsesEcho(instructions="I", temperature=0.7, tools=[{"type": "web_search"}])
    generator = ResponsesChunkGenerator("id", "m", False).with_echo(echo)
    created = json.loads(run(generator, "a")[0].to_json())["response"]
    assert (created["instructions"], created["temperature"]) == ("I", 0.7)
    assert created["tools"] == [{"type": "web_search"}]


def test_functions_of_namespaces_are_told_apart():
    generator = ResponsesChunkGenerator("id", "m", False)
    generator = generator.with_namespace_tool_map({"N::m": ("N", "m")})
    events = [json.loads(e.to_json()) for e in run(generator, block(invoke("N::m")))]
    item = next(e for e in events if e["type"] == "response.output_item.added")["item"]
    assert (item["name"], item["namespace"]) == ("m", "N")


@pytest.mark.parametrize(
    ("value", "finish", "status", "arguments"),
    [
        ("3", "Stop", "completed", {"query": "a b", "limit": 3}),
        ("3", "Length", "incomplete", {}),
        ("three", "Stop", "incomplete", {}),
    ],
)
def test_a_search_for_tools_is_told_as_a_whole(value, finish, status, arguments):
    call = invoke("tool_search", parameter("query", "a b"), parameter("limit", value, "false"))
    told = tell(recipe, Setting("responses", False, finish), cut(block(call), 5))
    events = [json.loads(event) for event in told.events]
    items = [event["item"] for event in events if "item" in event]
    assert [item["arguments"] for item in items] == [{}, arguments]
    assert [item["status"] for item in items] == ["in_progress", status]
    assert not any("delta" in event for event in events)
    (item,) = json.loads(told.response)["output"]
    assert item == items[-1]
    assert (item["type"], item["execution"]) == ("tool_search_call", "client")


@given(st.text(max_size=30), st.integers(1, 9))
def test_the_input_of_custom_tools_is_unwrapped(text, size):
    arguments = '{"input": ' + json.dumps(text, ensure_ascii=False) + "}"
    # Escapes are never cut: the parser hands them out whole.
    pieces = ['{"input": "', *(json.dumps(c, ensure_ascii=False)[1:-1] for c in text), '"', "}"]
    for parts in (pieces, [arguments], [*cut(arguments[:10], size), arguments[10:]]):
        unwrapped = CustomInput()
        assert "".join(map(unwrapped.feed, parts)) + unwrapped.finish() == text


@given(st.text('{"inpu: ', max_size=14))
def test_other_arguments_of_custom_tools_pass_through(arguments):
    if arguments.startswith('{"input": "'):
        return
    unwrapped = CustomInput()
    assert "".join(map(unwrapped.feed, arguments)) + unwrapped.finish() == arguments
