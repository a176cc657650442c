"""Requests become the same conversations, prompts, options and errors as with the wheel.

Cases that differ on purpose are named by predicates; no other difference is let pass.
"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deepinfer import recipe
from tests.recipe.oracle import rendered, wheel
from tests.recipe.requests import Case, draw_case

SEED = 20261129
MOST_FILTERED = 0.05
CLASSES = {
    "chat": "ChatCompletionRequest",
    "responses": "ResponsesRequest",
    "messages": "MessagesRequest",
}
OPTION_ENUMS = {
    "reasoning_content_behavior": "ReasoningContentBehavior",
    "responses_web_search": "WebSearchBehavior",
    "messages_web_search": "WebSearchBehavior",
}
TIMES = re.compile(r'(?<="created":)\d+|(?<="created_at":)\d+')
Outcome = tuple[Any, ...]


def converted(module: Any, case: Case) -> Outcome:
    """All that a module makes of a case, as plain values."""
    options = conversion_options(module, case.options)
    try:
        kind = getattr(module, CLASSES[case.protocol])
        request = kind(case.body)
    except (ValueError, TypeError, OverflowError) as error:
        kinds = (UnicodeError, ValueError, TypeError, OverflowError)
        return "body", next(kind for kind in kinds if isinstance(error, kind)), str(error)
    try:
        names = request.namespace_tool_map(options) if case.protocol == "responses" else {}
        result = request.convert(options)
    except module.ConversionError as error:
        return "error", error.status_code, error.body, str(error)
    generator = kind.chunk_generator(result, "id", "model")
    return "done", names, *described(module, result), first_events(module, result, generator)


def conversion_options(module: Any, wished: dict[str, Any]) -> Any:
    options = {
        key: getattr(getattr(module, OPTION_ENUMS[key]), value) if key in OPTION_ENUMS else value
        for key, value in wished.items()
        if key != "image_token"
    }
    tokens = module.SpecialTokens(image=wished.get("image_token"))
    return module.ConversionOptions(**options).with_special_tokens(tokens)


def first_events(module: Any, request: Any, generator: Any) -> Any:
    """What the client is told when the answer begins; in Responses that repeats the settings."""
    processor = module.StreamProcessor(generator, request.parsing_options)
    events = processor.push(module.InferenceChunk.ready())
    return [TIMES.sub("0", event.to_json()) for event in events]


def described(module: Any, request: Any) -> Outcome:
    """A conversation request as plain values, its prompt with them."""
    conversation, inference = request.conversation, request.inference_options
    parsing, constraint = request.parsing_options, request.inference_options.output_constraint
    image = parsing.special_tokens.token(module.SpecialToken.Image)
    version = {"DeepseekV4Pro": "V4", "DeepseekV41Flash": "V41"}[name(request.model_version)]
    return (
        [message_values(message) for message in conversation.messages],
        [tool_values(tool) for tool in conversation.tools],
        conversation.thinking_mode,
        conversation.tool_choice,
        conversation.reasoning_effort,
        (conversation.response_format, conversation.response_schema, conversation.response_regex),
        (inference.max_tokens, inference.temperature, inference.top_p),
        (inference.logprobs, inference.top_logprobs, inference.seed),
        constraint and (constraint.kind, constraint.schema),
        (parsing.parse_tool_calls, parsing.starts_in_tool_calls, parsing.parse_json_output),
        parsing.thinking_initial_stage and name(parsing.thinking_initial_stage),
        parsing.stop_sequences,
        request.stream,
        version,
        rendered(module, version, conversation, image=image),
        [limit(module, request, *counts) for counts in ((0, 0), (10, 60), (10, 10**6))],
    )


def name(member: Any) -> str:
    return str(member).rpartition(".")[2]


def limit(module: Any, request: Any, prompt: int, context: int) -> Any:
    try:
        return request.resolve_max_tokens(prompt, context)
    except module.ConversionError as error:
        return error.body


def message_values(message: Any) -> Outcome:
    images = [(i.kind, i.detail, i.data_url, i.url, i.path) for i in message.image_sources]
    calls = message.tool_calls and [(c.id, c.name, c.arguments) for c in message.tool_calls]
    tools = getattr(message, "tools", None)
    return (
        message.role,
        message.content,
        message.reasoning_content,
        message.tool_call_id,
        message.prefix,
        calls,
        images,
        None if tools is None else [tool_values(tool) for tool in tools],
    )


def tool_values(tool: Any) -> Outcome:
    return tool.name, tool.description, tool.parameters, tool.strict, tool.defer_loading


# What differs on purpose. Each takes (case, outcome of the wheel, ours).


def says_where_json_ends_otherwise(case: Case, theirs: Outcome, ours: Outcome) -> bool:
    """Faults of JSON text are told in other words."""
    return all(
        outcome[0] == "body" and outcome[2].startswith("invalid JSON request: ")
        for outcome in (theirs, ours)
    )


def has_a_list_for_an_object(case: Case, theirs: Outcome, ours: Outcome) -> bool:
    """The wheel reads the items of a list as the fields of an object; we refuse a list."""
    return ours[0] == "body" and (
        "invalid type: sequence, expected struct" in ours[2]
        or "invalid length 0, expected struct" in ours[2]
        or "invalid type: sequence, expected internally tagged" in ours[2]
    )


def has_a_number_for_a_type(case: Case, theirs: Outcome, ours: Outcome) -> bool:
    """In some places the wheel takes the number of a variant for its name."""
    return ours[0] == "body" and "expected variant identifier" in ours[2]


def has_the_patch_tool(case: Case, theirs: Outcome, ours: Outcome) -> bool:
    """The description of `apply_patch` is our own."""
    return ours[0] == theirs[0] == "done" and "*** Begin Patch" in str(ours)


def renders_otherwise(case: Case, theirs: Outcome, ours: Outcome) -> bool:
    """Prompts of V4.1 that differ on purpose; see `test_differential_encode`."""
    if not ours[0] == theirs[0] == "done" or "V41" not in ours or ours[:-3] != theirs[:-3]:
        return False
    roles = [message[0] for message in ours[2]]
    reminders = ("latest_reminder", "latest_reminder") in zip(roles, roles[1:], strict=False)
    begins_with_prefix = bool(ours[2]) and ours[2][0][4]
    return reminders or begins_with_prefix


def keeps_the_order_of_calls(case: Case, theirs: Outcome, ours: Outcome) -> bool:
    """In Responses the wheel sorts the calls of a turn by their ids; we keep their order."""
    if case.protocol != "responses" or not ours[0] == theirs[0] == "done":
        return False
    ids = [[call[0] for call in message[5] or []] for message in ours[2]]
    return any(turn != sorted(turn) for turn in ids)


def names_another_call(case: Case, theirs: Outcome, ours: Outcome) -> bool:
    """Of several calls without output the wheel names any, we name the first."""
    return all(
        outcome[0] == "error" and outcome[3].startswith("No tool output found for tool call ")
        for outcome in (theirs, ours)
    )


DIFFERENCES: tuple[Callable[[Case, Outcome, Outcome], bool], ...] = (
    says_where_json_ends_otherwise,
    has_a_list_for_an_object,
    has_a_number_for_a_type,
    has_the_patch_tool,
    keeps_the_order_of_calls,
    names_another_call,
    renders_otherwise,
)


def compare(case: Case) -> str | None:
    """None if both agree, else the name of the intended difference.

    Raises:
        AssertionError: they differ, and no predicate knows why.
    """
    theirs, ours = converted(wheel(), case), converted(recipe, case)
    if theirs == ours:
        return None
    for difference in DIFFERENCES:
        if difference(case, theirs, ours):
            return difference.__name__
    assert ours == theirs, case
    return None


@settings(max_examples=300)
@given(st.randoms(use_true_random=False))
def test_requests_are_converted_as_by_the_wheel(source):
    compare(draw_case(source))


def test_few_requests_differ_on_purpose_and_all_outcomes_occur():
    found = Counter(compare(draw_case(random.Random(f"{SEED}/{i}"))) for i in range(300))
    assert found.total() - found[None] <= MOST_FILTERED * found.total()
    kinds = Counter(
        (case.protocol, converted(recipe, case)[0])
        for case in (draw_case(random.Random(f"{SEED}/{i}")) for i in range(300))
    )
    assert all(
        kinds[protocol, kind] > 5 for protocol in CLASSES for kind in ("done", "error", "body")
    )


@pytest.mark.slow
def test_twenty_thousand_requests_are_converted_as_by_the_wheel(capsys):
    count = 20_000
    found = Counter(compare(draw_case(random.Random(f"{SEED}/{i}"))) for i in range(count))
    with capsys.disabled():
        sys.stdout.write(f"\nseed {SEED}, {count} requests, differences on purpose: {found}\n")
    assert found.total() - found[None] <= MOST_FILTERED * count, found
