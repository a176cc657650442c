"""All public reports of recipe.md 5 by their numbers: which test holds each, and those of requests.

Reports about parsing are in `test_parse_reports`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deepinfer.recipe import (
    ChatCompletionRequest,
    ConversionError,
    ConversionOptions,
    DeepseekV4Encoding,
    DeepseekV41Encoding,
    ReasoningContentBehavior,
)

TESTS = Path(__file__).resolve().parent
USER = {"role": "user", "content": "Give JSON"}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]

HELD_BY = {
    1: "test_parse_reports.py::test_1_and_12_a_block_cut_within_its_mark_leaves_no_text",
    2: "test_parse_reports.py::test_2_arguments_are_streamed_and_add_up",
    3: "test_parse_reports.py::test_3_a_wrapped_parameter_is_unwrapped_only_when_lenient",
    4: "test_reports.py::test_4_budgets_of_v41",
    5: "test_reports.py::test_5_and_9_texts_of_v4",
    6: "test_encode.py::test_later_instructions_stay_in_place_in_v41_and_move_to_the_head_in_v4",
    7: "test_encode.py::test_a_prefix_is_left_open",
    8: "test_parse_reports.py::test_8_damaged_wrappers_do_not_lose_calls",
    9: "test_reports.py::test_5_and_9_texts_of_v4",
    10: "test_parse_reports.py::test_10_other_special_tokens_stay_text",
    11: "../engine/test_sequential.py::test_the_end_token_ends_an_answer",
    12: "test_parse_reports.py::test_1_and_12_a_block_cut_within_its_mark_leaves_no_text",
    13: "test_parse_reports.py::test_13_arguments_of_stream_and_response_are_equal",
    14: "test_parse_reports.py::test_14_a_json_answer_stands_in_content_not_in_reasoning",
    15: "test_reports.py::test_15_json_answers_are_asked_for_in_thinking_mode_too",
    16: "test_convert_responses.py::test_reasoning_text_and_calls_of_a_turn_become_one_message",
    17: "test_reports.py::test_17_and_35_reasoning_must_be_passed_back_and_may_be_empty",
    18: "test_encode.py::test_old_thoughts_are_dropped_without_tools_and_kept_with_them",
    19: "test_parse_reports.py::test_19_without_think_tags_all_is_reasoning_or_all_is_content",
    20: "test_stream.py::test_reasoning_tokens_leave_out_marks_and_dropped_newlines",
    21: "test_parse_reports.py::test_21_the_opening_think_tag_may_be_in_the_prompt_only",
    22: "test_parse_reports.py::test_22_and_23_calls_without_the_token_are_content_unless_lenient",
    23: "test_parse_reports.py::test_22_and_23_calls_without_the_token_are_content_unless_lenient",
    24: "test_parse_reports.py::test_24_both_dialects_read_the_same",
    25: "test_parse_reports.py::test_25_a_block_ends_reasoning_and_a_second_think_tag_is_text",
    26: "test_parse_reports.py::test_26_a_value_may_end_like_a_tag",
    27: "test_parse_reports.py::test_27_quoted_malformed_markup_is_no_call_with_arguments",
    28: "test_events.py::test_events_are_framed_for_the_wire",  # when to send comments: the server
    29: "test_parse_reports.py::test_29_an_end_without_a_reason_is_told_as_stop",
    30: "test_parse_reports.py::test_30_the_first_token_of_content_is_there_with_tools",
    31: "test_encode.py::test_without_thinking_there_is_no_head_and_the_thought_is_closed",
    32: "test_reports.py::test_32_a_named_choice_opens_the_block_for_one_tool",
    33: "test_parse_reports.py::test_33_without_tools_prose_about_calls_is_untouched",
    34: "test_convert_chat.py::test_bodies_of_another_shape_are_value_errors_with_a_place",
    35: "test_reports.py::test_17_and_35_reasoning_must_be_passed_back_and_may_be_empty",
    36: "test_tokens.py::test_a_special_token_typed_by_a_user_is_ordinary_text",
}


def test_every_report_has_a_test():
    assert sorted(HELD_BY) == list(range(1, 37))
    for place in HELD_BY.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (TESTS / file).read_text(encoding="utf-8"), place


def prompt_and_request(encoding: Any, model: str, **members: Any) -> tuple[str, Any]:
    body = {"model": model, "messages": [USER], **members}
    request = ChatCompletionRequest(body).convert(ConversionOptions())
    return encoding.render_conversation(request.conversation).prompt, request


def v41(**members: Any) -> tuple[str, Any]:
    return prompt_and_request(DeepseekV41Encoding(), "DeepSeek-V4.1-Flash", **members)


def v4(**members: Any) -> str:
    return prompt_and_request(DeepseekV4Encoding(), "DeepSeek-V4-Pro", **members)[0]


@pytest.mark.parametrize(
    ("effort", "budget"),
    [("low", 50), ("medium", 75), ("high", 75), ("xhigh", 75), ("max", 100), ("ultra", 100)],
)
def test_4_budgets_of_v41(effort, budget):
    assert f"Reasoning Effort: {budget} " in v41(reasoning_effort=effort)[0]


def test_5_and_9_texts_of_v4():
    low, high, most = (v4(reasoning_effort=effort) for effort in ("low", "high", "max"))
    assert "Reasoning Effort" not in low
    assert "Absolute maximum" in high
    assert "Beyond maximum" in most
    assert v4() == high


def test_15_json_answers_are_asked_for_in_thinking_mode_too():
    wish = {"response_format": {"type": "json_object"}}
    prompt, request = v41(**wish)
    assert "## Response Format:\n\nYou MUST strictly adhere" in prompt
    assert prompt.endswith("<think>")
    assert request.parsing_options.parse_json_output
    assert "Reply with JSON object ONLY." in v4(**wish)


def test_17_and_35_reasoning_must_be_passed_back_and_may_be_empty():
    options = ConversionOptions(reasoning_content_behavior=ReasoningContentBehavior.Reject)
    function = {"name": "f", "arguments": "{}"}
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    result = {"role": "tool", "tool_call_id": "1", "content": "r"}

    def convert(answer: dict[str, Any]) -> Any:
        body = {"model": "DeepSeek-V4.1-Flash", "tools": TOOLS, "messages": [USER, answer, result]}
        return ChatCompletionRequest(body).convert(options)

    with pytest.raises(ConversionError) as caught:
        convert(answer)
    assert caught.value.status_code == 400
    sentence = "The `reasoning_content` in the thinking mode must be passed back to the API."
    assert str(caught.value) == sentence
    accepted = convert({**answer, "reasoning_content": ""}).conversation
    assert accepted.messages[1].reasoning_content == ""


def test_32_a_named_choice_opens_the_block_for_one_tool():
    choice = {"type": "function", "function": {"name": "g"}}
    prompt, request = v41(tools=TOOLS, tool_choice=choice, thinking={"type": "disabled"})
    assert prompt.endswith("</think>\n\n<｜DSML｜ calls>\n")
    assert [tool.name for tool in request.conversation.tools] == ["g"]
    assert request.parsing_options.starts_in_tool_calls
    assert request.inference_options.output_constraint.kind == "tool_call_required"
