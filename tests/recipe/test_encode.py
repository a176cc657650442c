"""Prompts: worked examples, digests of the published ones, and what must hold for any of them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer import recipe
from deepinfer.recipe import (
    AssistantMessage,
    Conversation,
    DeepseekV4Encoding,
    DeepseekV41Encoding,
    LatestReminderMessage,
    SpecialToken,
    SpecialTokens,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UrlImageSource,
    UserMessage,
)
from tests.recipe.conversations import CONVERSATIONS, TEXT, build
from tests.recipe.oracle import rendered

BOS, EOS = SpecialToken.Bos.value, SpecialToken.Eos.value
VERSIONS = ("V4", "V41")
HELLO = [UserMessage("Hello")]
EFFORT = (
    "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
)


def prompt(version: str, messages: Any = (), **options: Any) -> str:
    return rendered(recipe, version, Conversation(messages, **options))[0]


def body(version: str, messages: Any, **options: Any) -> str:
    """A prompt without BOS, the head and the generation header."""
    text = prompt(version, messages, **options).removeprefix(BOS)
    tools = "invoke tool calls.\n"
    if tools in text:
        text = text.partition(tools)[2]
    return text.removeprefix("<｜System｜>" + EFFORT.format(75))


@pytest.mark.parametrize(
    ("version", "effort", "size", "digest"),
    [
        ("V4", "low", 70, "c4163c61b5dd67e9"),
        ("V4", "high", 546, "12e7a3a0adc6ca79"),
        ("V4", "max", 598, "7bdb86e3073952dc"),
        ("V41", "low", 175, "cbea02f6104f3fab"),
        ("V41", "high", 175, "07aa7538f5ad045b"),
        ("V41", "max", 176, "d325cc40e680e6f4"),
    ],
)
def test_prompts_of_hello_have_the_published_digests(version, effort, size, digest):
    data = prompt(version, HELLO, reasoning_effort=effort).encode()
    assert len(data) == size
    assert hashlib.sha256(data).hexdigest().startswith(digest)


@pytest.mark.parametrize(
    ("version", "size", "digest"),
    [("V4", 998, "12896537df70074c"), ("V41", 992, "f18a4b500dc4431d")],
)
def test_the_section_about_tools_has_the_published_digest(version, size, digest):
    text = prompt(version, HELLO, thinking_mode=False, tools=[ToolDefinition("f")])
    section = text[text.index("## Tools") : text.index("<｜User｜>")]
    schema = '{"name": "f", "description": "", "parameters": null}'
    data = section.replace(schema, "{SCHEMAS}").encode()
    assert len(data) == size
    assert hashlib.sha256(data).hexdigest().startswith(digest)


@pytest.mark.parametrize("version", VERSIONS)
def test_without_thinking_there_is_no_head_and_the_thought_is_closed(version):
    expected = f"{BOS}<｜User｜>Hello<｜Assistant｜></think>"
    assert prompt(version, HELLO, thinking_mode=False) == expected


def test_the_head_of_v41_holds_effort_and_instructions():
    text = prompt("V41", [SystemMessage("S"), UserMessage("Hi")], reasoning_effort="max")
    head = f"{BOS}<｜System｜>{EFFORT.format(100)}S"
    assert text == f"{head}<｜User｜>Hi<｜Assistant｜><think>"


@pytest.mark.parametrize("effort", [1, 37, 100])
def test_numbers_are_efforts_in_v41(effort):
    text = prompt("V41", HELLO, reasoning_effort=effort)
    assert text.startswith(f"{BOS}<｜System｜>{EFFORT.format(effort)}<｜User｜>")


def test_v4_refuses_a_numeric_effort():
    with pytest.raises(ValueError, match="no numeric reasoning_effort such as 37"):
        prompt("V4", HELLO, reasoning_effort=37)


@pytest.mark.parametrize("version", VERSIONS)
def test_old_thoughts_are_dropped_without_tools_and_kept_with_them(version):
    messages = [UserMessage("q1"), AssistantMessage("a1", "r1"), UserMessage("q2")]
    tail = f"a1{EOS}<｜User｜>q2<｜Assistant｜><think>"
    assert prompt(version, messages).endswith(f"<｜User｜>q1<｜Assistant｜></think>{tail}")
    with_tools = prompt(version, messages, tools=[ToolDefinition("f")])
    assert with_tools.endswith(f"<｜User｜>q1<｜Assistant｜><think>r1</think>{tail}")
    hidden = prompt(version, messages, tools=[ToolDefinition("f")], tool_choice="none")
    assert hidden == prompt(version, messages)


TOOL_LOOP = [
    UserMessage("w?"),
    AssistantMessage(
        "",
        "think",
        [ToolCall("1", "get_weather", '{"b": "P\\"aris", "a": 1}'), ToolCall("2", "f", "{}")],
    ),
    ToolMessage("r2", "2"),
    ToolMessage("r1", "1"),
    UserMessage("more"),
]
LOOP_V41 = (
    "<｜User｜>w?<｜Assistant｜><think>think</think>\n\n<｜DSML｜ calls>\n"
    '<｜DSML｜ invoke name="get_weather">\n'
    '<｜DSML｜ parameter name="b" string="true">P"aris</｜DSML｜ parameter>\n'
    '<｜DSML｜ parameter name="a" string="false">1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n'
    '<｜DSML｜ invoke name="f">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>'
    f"{EOS}<｜User｜><tool_result>r1</tool_result>\n\n<tool_result>r2</tool_result>\n\nmore"
    "<｜Assistant｜><think>"
)


def test_a_tool_loop_of_v41():
    assert body("V41", TOOL_LOOP, tools=[ToolDefinition("f")]) == LOOP_V41


def test_a_tool_loop_of_v4_has_other_tags_and_no_empty_line():
    expected = LOOP_V41.replace("｜ calls", "｜tool_calls").replace("｜ ", "｜")
    expected = expected.replace('"f">\n\n<', '"f">\n<')
    assert body("V4", TOOL_LOOP, tools=[ToolDefinition("f")]) == expected


def test_later_instructions_stay_in_place_in_v41_and_move_to_the_head_in_v4():
    messages = [
        SystemMessage("S"),
        UserMessage("q"),
        AssistantMessage("x"),
        SystemMessage("mid"),
        UserMessage("q2"),
    ]
    first, second = (
        f"<｜User｜>q<｜Assistant｜></think>x{EOS}",
        "<｜User｜>q2<｜Assistant｜></think>",
    )
    in_v41 = prompt("V41", messages, thinking_mode=False)
    assert in_v41 == f"{BOS}<｜System｜>S{first}<｜System｜>mid{second}"
    assert prompt("V4", messages, thinking_mode=False) == f"{BOS}S\n\nmid{first}{second}"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_reminder_stands_before_the_answer(version):
    messages = [UserMessage("q"), LatestReminderMessage("2026-01-01")]
    text = prompt(version, messages, thinking_mode=False)
    assert text == f"{BOS}<｜User｜>q<｜latest_reminder｜>2026-01-01<｜Assistant｜></think>"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_reminder_is_written(version):
    messages = [UserMessage("q"), LatestReminderMessage("1"), LatestReminderMessage("2")]
    text = prompt(version, messages, thinking_mode=False)
    assert "<｜User｜>q<｜latest_reminder｜>1<｜latest_reminder｜>2<｜Assistant｜>" in text


@pytest.mark.parametrize(
    ("content", "reasoning", "tail"),
    [
        ("pre", "", "<think></think>pre"),
        ("", "r", "<think>r"),
        ("a", "r", "<think>r</think>a"),
        ("", "", "<think>"),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_prefix_is_left_open(version, content, reasoning, tail):
    messages = [UserMessage("q"), AssistantMessage(content, reasoning, prefix=True)]
    assert prompt(version, messages).endswith(f"<｜User｜>q<｜Assistant｜>{tail}")


def test_a_prefix_without_a_question_keeps_its_thought():
    messages = [AssistantMessage("", "r", prefix=True)]
    assert body("V41", messages) == "<｜Assistant｜><think>r"


@pytest.mark.parametrize(("version", "block"), [("V4", "tool_calls"), ("V41", " calls")])
def test_a_required_call_opens_the_block(version, block):
    options: dict[str, Any] = {"tools": [ToolDefinition("f")], "tool_choice": "required"}
    text = prompt(version, HELLO, thinking_mode=False, **options)
    assert text.endswith(f"<｜Assistant｜></think>\n\n<｜DSML｜{block}>\n")
    del options["tools"]
    assert prompt(version, HELLO, thinking_mode=False, **options).endswith("</think>")


@pytest.mark.parametrize("version", VERSIONS)
def test_arguments_that_are_no_object_become_one_parameter(version):
    for text in ('{"b":', "[1]", '"x"', "", '{"a": NaN}', '{"a": "\\ud800"}', '{"a":1}' * 2):
        messages = [AssistantMessage("", tool_calls=[ToolCall("1", "f", text)])]
        blank = " " if version == "V41" else ""
        shown = f'parameter name="arguments" string="true">{text}</｜DSML｜{blank}parameter>'
        assert shown in prompt(version, messages)


def test_json_answers_are_asked_for():
    asked = (
        "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
    )
    text = prompt("V41", HELLO, thinking_mode=False, response_format="json_object")
    assert text.startswith(f'{BOS}<｜System｜>{asked}{{"type": "json_object"}}<｜User｜>')
    text = prompt("V4", HELLO, thinking_mode=False, response_format="json_object")
    assert text.startswith(
        f"{BOS}\n\nYou are a helpful assistant designed to output JSON.\n## Resp"
    )
    for version in VERSIONS:
        text = prompt(version, HELLO, thinking_mode=False, response_schema={"b": 1, "a": [1.0]})
        assert f'{asked}{{"b": 1, "a": [1.0]}}<｜User｜>' in text
        plain = prompt(version, HELLO, thinking_mode=False)
        assert prompt(version, HELLO, thinking_mode=False, response_regex="a+") == plain


def test_images_stand_where_their_placeholders_are():
    image = SpecialToken.Image.value
    images = [UrlImageSource("u1"), UrlImageSource("u2")]
    message = UserMessage(f"A{image}B{image}C{image}", images)
    text, ranges, _ = rendered(recipe, "V41", Conversation([message], thinking_mode=False))
    spelled = [text[a:b] for a, b in ranges]
    assert spelled == [BOS, "<｜User｜>", image, image, "<｜Assistant｜>", "</think>"]
    assert text.count(image) == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_that_a_request_holds_is_a_special_token(version):
    everything = "".join(token.value for token in SpecialToken)
    messages = [
        SystemMessage(everything),
        UserMessage(everything),
        AssistantMessage("", "", [ToolCall("1", everything, json.dumps({everything: everything}))]),
        ToolMessage(everything, "1"),
        LatestReminderMessage(everything),
    ]
    tools = [ToolDefinition(everything, everything, {everything: everything})]
    hostile = rendered(recipe, version, Conversation(messages, tools=tools))
    calm = [
        SystemMessage("x"),
        UserMessage("x"),
        AssistantMessage("", "", [ToolCall("1", "x", '{"x": "x"}')]),
        ToolMessage("x", "1"),
        LatestReminderMessage("x"),
    ]
    tame = rendered(recipe, version, Conversation(calm, tools=[ToolDefinition("x")]))
    assert [hostile[0][a:b] for a, b in hostile[1]] == [tame[0][a:b] for a, b in tame[1]]


@pytest.mark.parametrize("version", VERSIONS)
def test_marks_on_images_are_special_where_the_model_wrote_them(version):
    marks = "<｜ref｜>cat<｜/ref｜><｜box｜>[[1, 2, 3, 4]]<｜/box｜>"
    messages = [UserMessage(marks), AssistantMessage(marks, marks)]
    text, ranges, _ = rendered(recipe, version, Conversation(messages, tools=[ToolDefinition("f")]))
    spelled = [text[a:b] for a, b in ranges]
    assert [spelled.count(f"<｜{name}｜>") for name in ("ref", "/ref", "box", "/box")] == [2] * 4


@pytest.mark.parametrize("version", VERSIONS)
@given(conversation=CONVERSATIONS)
def test_every_range_spells_one_special_token(version, conversation):
    text, ranges, _ = rendered(recipe, version, build(recipe, conversation))
    spellings = {token.value for token in SpecialToken} | {"<IMG>"}
    end = 0
    for start, stop in ranges:
        assert end <= start
        assert text[start:stop] in spellings
        end = stop


@given(TEXT)
def test_other_spellings_change_only_the_ranges(text):
    conversation = Conversation([UserMessage(text)], thinking_mode=False)
    spelled = SpecialTokens(user="<U>", bos=None, assistant="")
    for encoding in (DeepseekV4Encoding(), DeepseekV41Encoding()):
        prompt = encoding.with_special_tokens(spelled).render_conversation(conversation)
        assert prompt.prompt == f"{BOS}<U>{text}</think>"
        assert [prompt.prompt[a:b] for a, b in prompt.special_ranges] == [BOS, "<U>", "</think>"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("task", ["query", "authority", "domain", "title", "read_url"])
def test_a_task_is_answered_right_after_its_token(version, task):
    asked = UserMessage("q", task=task)
    text = prompt(version, [asked], thinking_mode=False)
    assert text == f"{BOS}<｜User｜>q<｜{task}｜>"
    text = prompt(version, [asked, AssistantMessage("a", "r"), UserMessage("z")])
    assert text.endswith(f"<｜User｜>q<｜{task}｜>a{EOS}<｜User｜>z<｜Assistant｜><think>")
    text = prompt(version, [asked, UserMessage("z")], thinking_mode=False)
    assert text == f"{BOS}<｜User｜>q<｜{task}｜><｜User｜>z<｜Assistant｜></think>"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_action_task_stands_after_the_header(version):
    text = prompt(version, [UserMessage("q", task="action")])
    assert text.endswith("<｜User｜>q<｜Assistant｜><think><｜action｜>")


@pytest.mark.parametrize("version", VERSIONS)
def test_ten_thousand_calls_and_a_megabyte_of_arguments_are_written_in_linear_time(version):
    deep = "1"
    for _ in range(200):
        deep = f'{{"a": {deep}}}'
    calls = [ToolCall(f"{i:05}", "f", '{"a": 1}') for i in range(10_000)]
    big = json.dumps({"text": "x" * 1_000_000, "rest": deep})
    results = [ToolMessage("r", call.id) for call in calls]
    messages = [AssistantMessage("", tool_calls=[*calls, ToolCall("z", "f", big)]), *results]
    text = prompt(version, [*messages, AssistantMessage("", tool_calls=[ToolCall("", "f", deep)])])
    assert text.count("<tool_result>") == 10_000
    assert "x" * 1_000_000 in text
    assert deep in text


@given(st.lists(st.sampled_from("123"), max_size=5))
def test_results_follow_the_order_of_their_calls(order):
    calls = [ToolCall(name, name, "{}") for name in ("1", "2", "3")]
    results = [ToolMessage(f"{name}", name) for name in order]
    messages = [UserMessage("q"), AssistantMessage("", tool_calls=calls), *results]
    text = prompt("V41", messages)
    shown = [piece[0] for piece in text.split("<tool_result>")[1:]]
    assert shown == sorted(order)


def test_results_behind_an_answer_without_calls_follow_the_order_of_the_calls_before_it():
    calls = [ToolCall("1", "f", "{}"), ToolCall("2", "f", "{}")]
    answers = [AssistantMessage("", tool_calls=calls), AssistantMessage("wait")]
    results = [ToolMessage("second", "2"), ToolMessage("first", "1")]
    text = prompt("V41", [*HELLO, *answers, *results], thinking_mode=False)
    assert text.index("first") < text.index("second")
