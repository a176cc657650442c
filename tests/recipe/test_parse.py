"""The parser of model output: the table of the specification, public reports, hostile text."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.recipe import ParsingOptions, SpecialTokens, ThinkingInitialStage
from deepinfer.recipe.parse import Label, OutputParser
from tests.recipe import outputs
from tests.recipe.outputs import block, cut, invoke, one_call, parameter

START = ThinkingInitialStage.ReasoningStart
CALLED = [("f", '{"a": "x"}')]


def thinking(**changes) -> ParsingOptions:
    return ParsingOptions(thinking_initial_stage=START, **changes)


def parse(chunks, options, truncated=False):
    """Reasoning, content, calls and the stop sequence."""
    parser = OutputParser(options)
    spans = [span for chunk in chunks for span in parser.feed(chunk)] + parser.finish(truncated)
    assert sum(span.size for span in spans) == sum(map(len, chunks))
    texts = dict.fromkeys(Label, "")
    calls: list[list[str]] = []
    for label, text, _ in spans:
        if label is Label.CALL:
            calls.append([text, ""])
        elif label is Label.ARGUMENTS:
            calls[-1][1] += text
        else:
            texts[label] += text
    named = [(name, arguments) for name, arguments in calls]
    return texts[Label.REASONING], texts[Label.CONTENT], named, texts[Label.STOP]


TABLE = [
    ("\n\nthink\n\n</think>\n\nhello\n\n", "think", "hello\n\n", []),
    ("abc \n </think>\n x", "abc \n ", " x", []),
    ("think only", "think only", "", []),
    ("a</think>b</think>c", "a", "bc", []),
    ("<think>a</think>b", "<think>a", "b", []),
    (f"a</think>hello\n\n{one_call()}", "a", "hello", CALLED),
    (f"a</think>x \n \n{one_call()}", "a", "x \n ", CALLED),
    (f"a</think>{one_call()}\n\nmore", "a", "", CALLED),
    ("a</think>" + one_call() + "\n" + one_call("y"), "a", "", CALLED),
    (f"a{one_call()}", "a", "", CALLED),
    ("a</think>" + one_call(wrapper='tool_calls'), "a", "", CALLED),
    ("a</think>" + one_call(wrapper='function_calls'), "a", "", CALLED),
    ("a</think>" + one_call('line1\nline2\n'), "a", "", [("f", '{"a": "line1\\nline2\\n"}')]),
    ("a</think>" + one_call('say "hi" \\n\t\x01'), "a", "", [
        ("f", '{"a": "say \\"hi\\" \\\\n\\t\\u0001"}')
    ]),
    ("a</think>" + one_call('2>&1</parameter><tag>'), "a", "", [
        ("f", '{"a": "2>&1</parameter><tag>"}')
    ]),
    ("a</think>" + one_call('<｜DSML｜ x'), "a", "", [("f", '{"a": "<｜DSML｜ x"}')]),
    ("a</think>" + block(invoke('f', parameter('a', '\n5\n', 'false'))), "a", "", [
        ("f", '{"a": \n5\n}')
    ]),
    ("a</think>" + block(invoke('f', parameter('a', 'not json', 'false'))), "a", "", [
        ("f", '{"a": not json}')
    ]),
    ("a</think>" + block(invoke('f', parameter('a', '1', 'false'), parameter('a', '2'))), "a", "", [
        ("f", '{"a": 1, "a": "2"}')
    ]),
    ("a</think>" + block(invoke('f', '{"a": 1}')), "a", "", [("f", "{}")]),
    ("a</think>" + block(invoke('f'), 'prose', invoke('g')), "a", "", [("f", "{}"), ("g", "{}")]),
    ("a</think><|DSML| calls>", "a", "<|DSML| calls>", []),
    ("a</think></｜DSML｜tool_calls>", "a", "</｜DSML｜tool_calls>", []),
    ("a</think>\r\nb", "a", "\r\nb", []),
    ("a</think>b<｜end▁of▁sentence｜>", "a", "b<｜end▁of▁sentence｜>", []),
    ("", "", "", []),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 5, 10_000])
@pytest.mark.parametrize(("text", "reasoning", "content", "calls"), TABLE)
def test_the_table_of_the_specification_holds_for_every_chunk_size(
    text, reasoning, content, calls, size
):
    assert parse(cut(text, size), thinking()) == (reasoning, content, calls, "")


def test_without_thinking_the_answer_starts_at_once():
    assert parse(["\n</think>x"], ParsingOptions())[:2] == ("", "x")
    assert parse(["<think>r</think>x"], ParsingOptions())[:2] == ("", "<think>rx")


def test_a_block_is_text_when_no_tools_were_given():
    text = f"Say {one_call()} or <invoke name="
    assert parse([text], ParsingOptions(parse_tool_calls=False)) == ("", text, [], "")


def test_a_required_choice_starts_within_the_block():
    rest = one_call().split("\n", 1)[1]
    assert parse([rest], ParsingOptions(starts_in_tool_calls=True))[2] == CALLED


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (ThinkingInitialStage.ReasoningStart, ("r\n ", " \nx")),
        (ThinkingInitialStage.ReasoningContinuation, ("\nr\n ", " \nx")),
        (ThinkingInitialStage.ContentContinuation, ("", "\nr\n  \nx")),
    ],
)
def test_prefix_completions_keep_leading_newlines(stage, expected):
    options = ParsingOptions(thinking_initial_stage=stage)
    assert parse(["\nr\n </think> \nx"], options)[:2] == expected


# Stop sequences.


def test_the_stop_sequence_that_is_complete_first_counts():
    assert parse(["x12"], ParsingOptions(stop_sequences=["2", "12"])) == ("", "x1", [], "2")
    assert parse(["x12"], ParsingOptions(stop_sequences=["12", "2"])) == ("", "x", [], "12")
    both = ParsingOptions(stop_sequences=["abcd", "bc"])
    assert parse(["xab", "ce"], both) == ("", "xa", [], "bc")


def test_stop_sequences_hold_in_the_answer_only():
    options = thinking(stop_sequences=["STOP"])
    assert parse(["STOP</think>a", "STOP b"], options) == ("STOP", "a", [], "STOP")
    assert parse([f"</think>{one_call('STOP')}"], options)[2] == [("f", '{"a": "STOP"}')]


def test_a_begun_stop_sequence_is_text_at_the_end():
    assert parse(["abc ST"], ParsingOptions(stop_sequences=["STOP"]))[1] == "abc ST"


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_stop_sequences_are_found_where_a_search_of_every_prefix_finds_them(text, stops):
    expected, found = text, ""
    for end in range(len(text) + 1):
        match = next((stop for stop in stops if text[:end].endswith(stop)), None)
        if match is not None:
            expected, found = text[: end - len(match)], match
            break
    options = ParsingOptions(stop_sequences=stops)
    assert parse(cut(text, 1), options) == ("", expected, [], found)
    assert parse([text], options) == ("", expected, [], found)


# JSON output.

JSON_CASES = [
    ('Sure: {"a": 1} trailing', ' {"a": 1} trailing'),
    ('\n\n{"a":1}', '{"a":1}'),
    ('pre\n```json\n{"a": 1}\n```\npost', ' {"a": 1} '),
    ("```\n[1]\n```", "[1]"),
    ("no json", " "),
    ("```json\n1\n``` more {", "1 "),
]


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(("text", "content"), JSON_CASES)
def test_text_around_json_becomes_one_blank_for_every_chunk_size(text, content, size):
    options = ParsingOptions(parse_json_output=True)
    assert parse(cut(text, size), options)[1] == content


def test_calls_are_read_before_json_and_after_a_fence_but_not_after_bare_json():
    options = ParsingOptions(parse_json_output=True)
    assert parse([f"pre {one_call()}"], options)[1:3] == (" ", CALLED)
    assert parse([f"```json\n1\n```\n{one_call()}"], options)[1:3] == ("1", CALLED)
    assert parse([f"{{}}{one_call()}"], options)[1] == "{}" + one_call()


# Nothing is lost.


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "The token <｜DSML｜ is special.\nIt opens blocks.",
        "It ends with <｜DSML｜",
        "`<｜DSML｜`\n\n<｜DSML｜, and <｜DSML｜。",
        "Use <｜DSML｜ calls> to call tools.\n\nThen wait.",
        "<｜DSML｜ calls>\nget_weather(city)\n</｜DSML｜ calls>\nDone.",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="record_item {\n and prose "quoted" here',
        "<｜DSML｜ calls>\n<｜DSML｜ calls>\n",
        "\n\n<｜DSML｜ x y z",
    ],
)
def test_a_mark_that_opens_no_call_is_text(text, size):
    expected = text.lstrip("\n")
    kept = parse(cut("r</think>" + text, size), thinking())
    assert (kept[0], kept[1].lstrip("\n"), kept[2]) == ("r", expected, [])
    assert parse(cut(text + "</think>x", size), thinking())[:2] == (expected.rstrip("\n"), "x")


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
@pytest.mark.parametrize(
    ("text", "stop", "content"),
    [
        ("a <｜DSML｜ is b", "｜ is", "a <｜DSML"),
        ("a <｜DSML｜ is b", " is", "a <｜DSML｜"),
        ("a <｜DSML｜ is b", "｜ is not", "a <｜DSML｜ is b"),
        ("a <｜DSML｜<｜DSML｜ is", "｜<｜D", "a <｜DSML"),
        ("a\n<｜DSML｜ is b", "SML", "a\n<｜D"),
        (block("x") + "y z", ">y", block("x")[:-1]),
        # A mark is complete before a stop sequence that goes on behind it; so says the wheel.
        ("a <｜DSML｜ is b", "a <｜DSML｜ is", "a <｜DSML｜ is b"),
    ],
)
def test_a_stop_sequence_may_begin_in_a_mark_that_is_prose(text, stop, content, size):
    told = parse(cut(text, size), ParsingOptions(stop_sequences=[stop]))
    assert told == ("", content, [], "" if content == text else stop)


@given(
    st.data(),
    outputs.broken_outputs(),
    st.lists(
        st.sampled_from(["｜i", "｜ ", "L｜<", ">\n<", "｜</", ">h", "{"]), min_size=1, max_size=2
    ),
    st.booleans(),
)
def test_stop_sequences_in_prose_are_found_however_it_is_cut(data, text, stops, lenient):
    options = ParsingOptions(stop_sequences=stops, lenient=lenient)
    whole = parse([text], options)
    assert parse(data.draw(outputs.cuts(text)), options) == whole
    assert parse(cut(text, 1), options) == whole


@pytest.mark.parametrize(
    "text", ["a <｜DSML｜ is b\n", "a <｜DSML｜hello</｜DSML｜x\n\n", "a<｜DSML｜\n"]
)
def test_newlines_at_the_end_of_prose_about_the_mark_are_kept(text):
    for size in (1, 3, 1000):
        assert parse(cut(text, size), thinking())[0] == text
        assert parse(cut(f"</think>{text}", size), thinking())[1] == text


def test_half_a_stop_sequence_in_prose_hides_no_call():
    options = ParsingOptions(stop_sequences=["｜ is: <｜DSML｜ calls>\n?"])
    text = f"a <｜DSML｜ is: {one_call()}"
    for size in (1, 5, 1000):
        assert parse(cut(text, size), options) == ("", "a <｜DSML｜ is: ", CALLED, "")
    half = "a <｜DSML｜ is: <｜DSML"
    assert parse(cut(half, 1), options) == ("", half, [], "")


def test_prose_about_the_mark_streams_on():
    parser = OutputParser(ParsingOptions())
    shown = "".join(span.text for span in parser.feed("A <｜DSML｜ is a token and so on"))
    assert shown == "A <｜DSML｜ is a token and so on"


@pytest.mark.parametrize("wrapper", ["", " call", "tool_cal", " calls", "tool_calls>>", "calls>\n"])
def test_damaged_wrappers_open_a_block_without_leaving_text(wrapper):
    text = f"a</think>b\n\n<｜DSML｜{wrapper}\n{invoke('f', parameter('a', 'x'))}"
    assert parse(cut(text, 3), thinking()) == ("a", "b", CALLED, "")


def test_a_block_cut_off_before_its_first_name_is_markup():
    opened = one_call().split('f"')[0]
    for end in range(len("<｜DSML｜"), len(opened) + 1):
        assert parse([f"a\n\n{opened[:end]}"], ParsingOptions(), truncated=True)[1] == "a"


def test_an_empty_block_is_markup():
    assert parse(["a<｜DSML｜ calls>\n</｜DSML｜ calls>"], ParsingOptions())[1:3] == ("a", [])


# Names and keys.


@pytest.mark.parametrize("key", ["shipping address", " string= mode ", "", "k\\", "a\nb", "é\x01"])
def test_every_parameter_name_survives(key):
    text = block(invoke("f", parameter(key, "1"), parameter("z", "2", "false")))
    for size in (1, 7, 1000):
        ((_, arguments),) = parse(cut(text, size), ParsingOptions())[2]
        assert json.loads(arguments) == {key: "1", "z": 2}


def test_a_name_is_told_only_with_its_closing_quote():
    opened = one_call().split('f"')[0]
    assert parse([opened + "f"], ParsingOptions(), truncated=True)[2] == []
    assert parse([opened + 'f"'], ParsingOptions(), truncated=True)[2] == [("f", "")]


def test_arguments_cut_off_stay_open():
    text = one_call("hello").split("lo<")[0]
    assert parse([text], ParsingOptions(), truncated=True)[2] == [("f", '{"a": "hel')]


def test_other_spellings_of_the_special_tokens_are_found():
    special = SpecialTokens(thinking_end="[/t]", dsml="|D|")
    text = "r[/t]c\n" + one_call().replace("｜DSML｜", "|D|")
    options = thinking(special_tokens=special)
    assert parse(cut(text, 2), options) == ("r", "c", CALLED, "")


# Any cut.


@given(st.data(), outputs.broken_outputs(), outputs.settings(broken=True), st.booleans())
def test_every_cut_gives_the_same_answer(data, text, setting, truncated):
    options = outputs.our_options(setting)
    whole = parse([text], options, truncated)
    assert parse(cut(text, 1), options, truncated) == whole
    assert parse(data.draw(outputs.cuts(text)), options, truncated) == whole


@given(st.text(max_size=60), outputs.settings(broken=True))
def test_any_text_is_parsed(text, setting):
    parse(cut(text, 3), outputs.our_options(setting))


@given(st.text(max_size=40), st.sampled_from([" calls", "tool_calls"]))
def test_string_values_come_back_as_json(value, wrapper):
    if "</｜DSML｜" in value:
        value = value.replace("｜", "")
    ((_, arguments),) = parse(cut(one_call(value, wrapper), 2), ParsingOptions())[2]
    assert json.loads(arguments) == {"a": value}


# Hostile outputs: linear time. The bounds are wide; what is quadratic misses them by far.

MEGA = 1_000_000


def seconds(chunks, options) -> float:
    began = time.process_time()
    parser = OutputParser(options)
    for chunk in chunks:
        parser.feed(chunk)
    parser.finish(False)
    return time.process_time() - began


@pytest.mark.parametrize(
    "text",
    [
        "\n" * MEGA,
        "<" * MEGA,
        "\n<" * (MEGA // 2),
        "</think" * (MEGA // 7),
        "<｜DSML｜" * (MEGA // 7),
        "<｜DSML｜ calls>" * (MEGA // 14),
        "<｜DSML｜ calls>\nx</｜DSML｜ calls>" * (MEGA // 30),
        '<｜DSML｜ calls>invoke name="\n' * (MEGA // 28),
        one_call("<" * MEGA),
        one_call('"\\\x00\u202e' * (MEGA // 4)),
        '<｜DSML｜ invoke name="' + "f" * MEGA,
        '<｜DSML｜ invoke name="f"><｜DSML｜ parameter name="' + "k" * MEGA,
        block(*[invoke("f", parameter("a", "x"))] * 10_000),
        block(invoke("f", parameter("a", '{"a":' * 200 + "1" + "}" * 200, "false"))),
    ],
    ids=lambda text: repr(text[:24]),
)
def test_hostile_outputs_take_linear_time(text):
    options = thinking(stop_sequences=["STOP", "\n\nx"])
    assert seconds(["r</think>", text], options) < 10
    assert seconds(["r</think>", *cut(text, 16)], options) < 10


def test_ten_thousand_calls_are_all_read():
    text = block(*[invoke("f", parameter("a", "x"))] * 10_000)
    assert parse(cut(text, 64), ParsingOptions())[2] == CALLED * 10_000
