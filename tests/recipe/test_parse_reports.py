"""Public reports of broken parsing, each as a test (recipe.md 5; the numbers are its numbers)."""

from __future__ import annotations

import json

import pytest

from deepinfer import recipe
from tests.recipe.outputs import Setting, block, cut, invoke, one_call, parameter, tell

PLAIN = Setting(thinking=False)


def answer(chunks, setting=PLAIN, **options):
    """Reasoning, content, calls and finish reason of a chat answer."""
    changed = Setting("chat", setting.thinking, setting.finish, setting.ready, options)
    (choice,) = json.loads(tell(recipe, changed, chunks).response)["choices"]
    message = choice["message"]
    calls = [tuple(call["function"].values()) for call in message.get("tool_calls", [])]
    return message.get("reasoning_content"), message["content"], calls, choice["finish_reason"]


@pytest.mark.parametrize("wrapper", [" calls", "tool_calls"])
def test_1_and_12_a_block_cut_within_its_mark_leaves_no_text(wrapper):
    text = "hi\n\n" + one_call(wrapper=wrapper)
    for first in range(1, len(text)):
        for second in range(first + 1, min(first + 12, len(text))):
            chunks = [text[:first], text[first:second], text[second:]]
            assert answer(chunks) == (None, "hi", [("f", '{"a": "x"}')], "tool_calls")


def test_2_arguments_are_streamed_and_add_up():
    text = one_call("v" * 2000)
    told = tell(recipe, PLAIN, cut(text, 1))
    deltas = [json.loads(event)["choices"][0]["delta"] for event in told.events]
    pieces = [delta["tool_calls"][0]["function"] for delta in deltas if "tool_calls" in delta]
    assert pieces[0] == {"name": "f", "arguments": ""}
    assert len(pieces) > 2000
    joined = "".join(piece["arguments"] for piece in pieces)
    assert [("f", joined)] == answer([text])[2]


def test_3_a_wrapped_parameter_is_unwrapped_only_when_lenient():
    text = block(invoke("read", parameter("arguments", '{"path":"/x"}', "false")))
    assert answer([text])[2] == [("read", '{"arguments": {"path":"/x"}}')]
    assert answer([text], lenient=True)[2] == [("read", '{"path": "/x"}')]


@pytest.mark.parametrize("damage", ["", " ca", "tool_calls>>", "_calls>", "tool_call"])
def test_8_damaged_wrappers_do_not_lose_calls(damage):
    text = f"a\n\n<｜DSML｜{damage}\n{invoke('f', parameter('a', 'x'))}"
    assert answer(cut(text, 2))[1:3] == ("a", [("f", '{"a": "x"}')])


def test_10_other_special_tokens_stay_text():
    assert answer(["ab<｜begin▁of▁sentence｜>cd"])[1] == "ab<｜begin▁of▁sentence｜>cd"


def test_13_arguments_of_stream_and_response_are_equal():
    text = block(invoke("weather", parameter("city", "上海")))
    assert answer(cut(text, 1))[2] == answer([text])[2] == [("weather", '{"city": "上海"}')]


def test_14_a_json_answer_stands_in_content_not_in_reasoning():
    text = 'r</think>{"a":1}'
    setting = Setting(thinking=True)
    assert answer(cut(text, 1), setting, parse_json_output=True)[:2] == ("r", '{"a":1}')


def test_19_without_think_tags_all_is_reasoning_or_all_is_content():
    assert answer(["answer"], Setting(thinking=True))[:2] == ("answer", "")
    assert answer(["answer"])[:2] == (None, "answer")


def test_21_the_opening_think_tag_may_be_in_the_prompt_only():
    assert answer(["r</think>x"], Setting(thinking=True))[:2] == ("r", "x")


@pytest.mark.parametrize(
    "text",
    [
        '<invoke name="read"><parameter name="a">x</parameter></invoke>',  # 22
        one_call(wrapper="tool_calls").replace("｜", "|"),  # 23
    ],
)
def test_22_and_23_calls_without_the_token_are_content_unless_lenient(text):
    assert answer(cut(text, 3))[1:] == (text, [], "stop")
    assert json.loads(answer(cut(text, 3), lenient=True)[2][0][1]) == {"a": "x"}


def test_24_both_dialects_read_the_same():
    old, new = one_call(wrapper="tool_calls"), one_call()
    expected = answer([new])
    for size in (1, 2, 3, 5, 8):
        assert answer(cut(old, size)) == answer(cut(new, size)) == expected


def test_25_a_block_ends_reasoning_and_a_second_think_tag_is_text():
    setting = Setting(thinking=True)
    assert answer([f"r\n{one_call()}"], setting)[:3] == ("r", "", [("f", '{"a": "x"}')])
    assert answer(["<think>r</think>x"], setting)[:2] == ("<think>r", "x")


def test_26_a_value_may_end_like_a_tag():
    for size in (1, 3, 100):
        ((_, arguments),) = answer(cut(one_call("make 2>&1"), size))[2]
        assert json.loads(arguments) == {"a": "make 2>&1"}


def test_27_quoted_malformed_markup_is_no_call_with_arguments():
    text = (
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="record_item {\n'
        "This is how it looked, and then it crashed."
    )
    assert answer(cut(text, 4)) == (None, text, [], "stop")


def test_29_an_end_without_a_reason_is_told_as_stop():
    assert answer(["r"], Setting(thinking=True, finish=None))[3] == "stop"


def test_30_the_first_token_of_content_is_there_with_tools():
    text = "Hello\n\n" + one_call()
    assert answer(cut(text, 1))[1] == "Hello"


def test_32_a_forced_call_is_read_from_within_its_block():
    rest = one_call().split("\n", 1)[1]
    found = answer(cut(rest, 3), starts_in_tool_calls=True)
    assert found == (None, "", [("f", '{"a": "x"}')], "tool_calls")


def test_33_without_tools_prose_about_calls_is_untouched():
    text = f'Write <invoke name="f"> or {one_call()} to call.'
    assert answer(cut(text, 5), parse_tool_calls=False)[1] == text


def test_truncation_wins_over_calls_and_leaves_arguments_open():
    text = one_call("hello").split("lo<")[0]
    assert answer([text], Setting(thinking=False, finish="Length")) == (
        None,
        "",
        [("f", '{"a": "hel')],
        "length",
    )
