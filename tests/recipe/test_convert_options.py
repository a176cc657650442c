"""Options of conversion and what a conversation request says about lengths."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.recipe import (
    Conversation,
    ConversationRequest,
    ConversionError,
    ConversionOptions,
    ModelVersion,
    ParsingOptions,
    SpecialTokens,
    ThinkingInitialStage,
    WebSearchBehavior,
)
from deepinfer.recipe.options import InferenceOptions


def request(max_tokens: int | None, thinking: bool, effort: Any) -> ConversationRequest:
    return ConversationRequest(
        Conversation(thinking_mode=thinking, reasoning_effort=effort),
        ModelVersion.DeepseekV41Flash,
        inference_options=InferenceOptions(max_tokens=max_tokens),
    )


@given(st.integers(0, 2000), st.integers(0, 2000), st.none() | st.integers(1, 2000))
def test_the_limit_fits_the_context_or_is_refused(prompt, context, wanted):
    asked = request(wanted, thinking=True, effort=None)
    if prompt + (wanted or 0) > context:
        with pytest.raises(ConversionError, match=f"requested {prompt + (wanted or 0)} tokens"):
            asked.resolve_max_tokens(prompt, context)
    else:
        limit = asked.resolve_max_tokens(prompt, context)
        assert limit == (wanted if wanted is not None else max(context - prompt, 1))


@pytest.mark.parametrize(
    ("thinking", "effort", "limit"),
    [(False, None, 8192), (True, None, 65536), (True, "xhigh", 65536), (True, "max", 131072)],
)
def test_default_limits_depend_on_mode_and_effort(thinking, effort, limit):
    assert request(None, thinking, effort).resolve_max_tokens(10, 10**6) == limit


def test_copies_change_one_option_and_leave_the_first_alone():
    first = ConversionOptions()
    second = first.with_responses_web_search(WebSearchBehavior.Reject).with_model_alias(
        "other", ModelVersion.DeepseekV4Pro
    )
    assert first == ConversionOptions()
    assert second.responses_web_search is WebSearchBehavior.Reject
    assert second.messages_web_search is first.messages_web_search
    assert set(second.model_versions_by_name) - set(first.model_versions_by_name) == {"other"}


def test_parsing_options_can_be_changed_and_are_checked():
    options = ParsingOptions(stop_sequences=["a"])
    options.stop_sequences = ["b", "c"]
    options.special_tokens = SpecialTokens(dsml="D")
    options.thinking_initial_stage = ThinkingInitialStage.ReasoningStart
    assert options.stop_sequences == ["b", "c"]
    with pytest.raises(TypeError):
        options.stop_sequences = "bc"


@pytest.mark.parametrize("bound", [-1, 2**32])
def test_bounds_are_32_bit_counts(bound):
    with pytest.raises(OverflowError):
        ConversionOptions(thinking_max_tokens_upper_bound=bound)
