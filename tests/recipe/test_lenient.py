"""The lenient mode: the malformed calls of public reports, and what must not become a call."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.recipe import (
    ChatCompletionRequest,
    ConversionOptions,
    ParsingOptions,
    ThinkingInitialStage,
    ToolDefinition,
)
from deepinfer.recipe.parse import Label, OutputParser
from tests.recipe import outputs
from tests.recipe.outputs import block, cut, invoke, one_call, parameter

X = [("f", {"a": "x"})]


def parse(chunks, lenient=True, truncated=False, **options):
    """Reasoning, content and calls with their arguments read."""
    stage = ThinkingInitialStage.ReasoningStart
    settings = ParsingOptions(lenient=lenient, thinking_initial_stage=stage, **options)
    parser = OutputParser(settings)
    spans = [span for chunk in chunks for span in parser.feed(chunk)] + parser.finish(truncated)
    assert sum(span.size for span in spans) == sum(map(len, chunks))
    texts, calls = dict.fromkeys(Label, ""), []
    for label, text, _ in spans:
        if label is Label.CALL:
            calls.append([text, ""])
        elif label is Label.ARGUMENTS:
            calls[-1][1] += text
        else:
            texts[label] += text
    read = [(name, json.loads(arguments)) for name, arguments in calls]
    return texts[Label.REASONING], texts[Label.CONTENT], read


def ascii_bars(text: str) -> str:
    return text.replace("｜", "|")


def without_token(text: str) -> str:
    return text.replace("｜DSML｜", "")


MALFORMED = {
    "ascii bars": (ascii_bars(one_call(wrapper="tool_calls")), X),
    "ascii bars of V4.1": (ascii_bars(one_call()), X),
    "no token": (without_token(one_call(wrapper="tool_calls")), X),
    "no token and no wrapper": ('<invoke name="f"><parameter name="a">x</parameter></invoke>', X),
    "no wrapper": (invoke("f", parameter("a", "x")), X),
    "damaged wrapper": ("<｜DSML｜tool_\n" + invoke("f", parameter("a", "x")), X),
    "no string attribute": (
        block(invoke("f", '<｜DSML｜ parameter name="a">x</｜DSML｜ parameter>')),
        X,
    ),
    "no string attribute, number": (
        block(invoke("f", '<｜DSML｜ parameter name="a">5</｜DSML｜ parameter>')),
        [("f", {"a": 5})],
    ),
    "single quotes and capitals": (
        block(invoke("f", "<｜DSML｜ parameter name='a' string='TRUE'>x</｜DSML｜ parameter>")),
        X,
    ),
    "no blank between the attributes": (
        block(invoke("f", parameter("a", "x").replace('" string', '"\nstring'))),
        X,
    ),
    "not JSON": (block(invoke("f", parameter("a", "x y", "false"))), [("f", {"a": "x y"})]),
    "empty JSON": (block(invoke("f", parameter("a", "", "false"))), [("f", {"a": ""})]),
    "body of JSON": (block(invoke("f", '{"a": "x"}')), X),
    "wrapped arguments": (block(invoke("f", parameter("arguments", '{"a": "x"}', "false"))), X),
    "wrapped arguments as text": (block(invoke("f", parameter("arguments", '{"a": "x"}'))), [
        ("f", {"arguments": '{"a": "x"}'})
    ]),
    "open parameter": (one_call().replace("</｜DSML｜ parameter>", ""), X),
    "half a closing tag": (one_call().replace("</｜DSML｜ parameter>", "</｜DSML｜ param"), X),
    "open invoke": (one_call().replace("</｜DSML｜ invoke>\n", ""), X),
    "cut off": (one_call("x").split("</｜DSML｜ par")[0], X),
    "two blocks": (one_call() + "\n" + one_call(), X + X),
}  # fmt: skip


@pytest.mark.parametrize("size", [1, 3, 10_000])
@pytest.mark.parametrize(("text", "calls"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_calls_are_repaired(text, calls, size):
    assert parse(cut(f"r</think>c\n\n{text}", size)) == ("r", "c", calls)


TYPED = {
    "path": {"type": "string"},
    "count": {"type": "integer"},
    "both": {"type": ["string", "number"]},
    "list": {"type": "array"},
    "any": {},
}


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [
        ([("arguments", '{"path": "/x"}', "false")], {"path": "/x"}),
        ([("arguments", '{"path": "/x"}', "true")], {"path": "/x"}),
        ([("input", '{"path": "/x"}', "false")], {"path": "/x"}),
        ([("input", "[1]", "false")], {"input": [1]}),
        ([("input", "{}", "false"), ("path", "x", "true")], {"input": {}, "path": "x"}),
        ([("path", "5", "false"), ("count", "5", "true")], {"path": "5", "count": 5}),
        ([("path", '"x"', "false")], {"path": "x"}),
        ([("path", "{}", "true"), ("any", "5", "true")], {"path": "{}", "any": "5"}),
        ([("count", "five", "true"), ("any", "5", "false")], {"count": "five", "any": 5}),
        ([("count", "5.0", "true"), ("count", "5.5", "false")], {"count": 5.5}),
        ([("both", "5", "true"), ("list", "[1, 2]", "true")], {"both": "5", "list": [1, 2]}),
        ([("count", "true", "true"), ("list", "null", "true")], {"count": "true", "list": "null"}),
    ],
)
def test_schemas_of_known_tools_help(pieces, arguments):
    tools = [ToolDefinition("f", parameters={"type": "object", "properties": TYPED})]
    text = block(invoke("f", *(parameter(*piece) for piece in pieces)))
    assert parse([f"</think>{text}"], tools=tools)[2] == [("f", arguments)]


@pytest.mark.parametrize("name", ["arguments", "input"])
def test_a_parameter_that_the_tool_has_is_not_unwrapped(name):
    text = block(invoke("f", parameter(name, '{"a": 1}', "false")))
    schema = {"type": "object", "properties": {name: {"type": "object"}}}
    tools = [ToolDefinition("f", parameters=schema)]
    assert parse([f"</think>{text}"], tools=tools)[2] == [("f", {name: {"a": 1}})]
    others = [ToolDefinition("g", parameters=schema)]
    unknown = {"a": 1} if name == "arguments" else {name: {"a": 1}}
    assert parse([f"</think>{text}"], tools=others)[2] == [("f", unknown)]


@pytest.mark.parametrize("schema", [None, True, {}, {"properties": []}, {"properties": {"a": 1}}])
def test_odd_schemas_repair_nothing(schema):
    text = block(invoke("f", parameter("a", "5", "false")))
    tools = [ToolDefinition("f", parameters=schema)]
    assert parse([f"</think>{text}"], tools=tools)[2] == [("f", {"a": 5})]


def test_conversion_tells_the_parser_of_the_tools():
    function = {"name": "f", "parameters": {"type": "object", "properties": TYPED}}
    body = {"model": outputs.MODEL, "messages": [{"role": "user", "content": "hi"}]}
    body["tools"] = [{"type": "function", "function": function}]
    request = ChatCompletionRequest(body).convert(ConversionOptions())
    assert [tool.name for tool in request.parsing_options.tools] == ["f"]
    assert not request.parsing_options.lenient


@pytest.mark.parametrize("text", [MALFORMED["ascii bars"][0], MALFORMED["no token"][0]])
def test_by_default_calls_without_the_token_are_text(text):
    assert parse([f"r</think>{text}"], lenient=False) == ("r", text, [])


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "Tags like <invoke name are read.",
        "The token <|DSML| is special.",
        "<tool_calls> is a wrapper.",
        "<｜DSML｜ calls>\nnothing\n</｜DSML｜ calls>\nDone.",
        "if a <b and c</invoke>",
    ],
)
def test_prose_stays_text(text, size):
    assert parse(cut(f"r</think>{text}", size)) == ("r", text, [])


def test_without_tools_nothing_is_repaired():
    for text, _ in MALFORMED.values():
        assert parse([f"</think>{text}"], parse_tool_calls=False) == ("", text, [])


def test_text_after_a_block_is_kept():
    text = f"r</think>one\n\n{one_call()}\n\ntwo"
    assert parse(cut(text, 5)) == ("r", "onetwo", X)
    bare = 'a <invoke name="f"><parameter name="a">x</parameter></invoke>\nb'
    assert parse(cut(f"</think>{bare}", 4)) == ("", "a b", X)


def test_tags_of_another_kind_within_a_value_are_text():
    value = '<parameter name="z">1</parameter></invoke></tool_calls>'
    assert parse([f"</think>{one_call(value)}"]) == ("", "", [("f", {"a": value})])


def test_a_required_choice_starts_within_the_block():
    rest = ascii_bars(one_call()).split("\n", 1)[1]
    assert parse([rest], starts_in_tool_calls=True)[2] == X


@given(st.data(), outputs.right_outputs(True))
def test_right_calls_are_read_as_by_the_strict_parser(data, text):
    if "oops" in text or 'string="false"></' in text or "1e400" in text or "<｜DSML｜ x" in text:
        return  # repaired, or tags within values
    if "</｜DSML｜ calls>" not in text and "</｜DSML｜tool_calls>" not in text:
        return  # cut off: completed
    text = text.removesuffix("\ntail")
    assert parse(data.draw(outputs.cuts(text))) == parse([text], lenient=False)


@given(st.data(), outputs.broken_outputs())
def test_every_cut_gives_the_same_answer(data, text):
    assert parse(data.draw(outputs.cuts(text))) == parse([text])
    assert parse(cut(text, 1)) == parse([text])


LARGE = 300_000


@pytest.mark.parametrize(
    "text",
    [
        "<invoke name" * (LARGE // 12),
        '<invoke name="f">' + "<parameter name=" * (LARGE // 16),
        '<invoke name="f">' + '<parameter name="' * (LARGE // 17),
        '<invoke name="f">' + '<parameter name="a">1' * (LARGE // 21),
        "<|DSML| calls>\n" * (LARGE // 16),
        one_call("<" * LARGE),
        block(*[invoke("f", parameter("a", "x"))] * 3000),
        block(invoke("f", "[" * LARGE)),
    ],
    ids=lambda text: repr(text[:34]),
)
def test_hostile_outputs_take_linear_time(text):
    for size in (16, LARGE):
        began = time.process_time()
        parse(["r</think>", *cut(text, size)])
        assert time.process_time() - began < 10
