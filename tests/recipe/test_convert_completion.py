"""Completions requests: text continued, and gaps filled."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer.recipe import ConversionError, ConversionOptions, Tokenizer
from deepinfer.recipe.completion import CompletionPrompt, CompletionRequest
from tests.recipe.oracle import tokenizer_text_v41


def converted(**members: Any) -> CompletionPrompt:
    body = {"model": "DeepSeek-V4.1-Flash", "prompt": "def f(", **members}
    return CompletionRequest(body).convert(ConversionOptions())


def test_without_a_suffix_the_text_is_continued():
    asked = converted(echo=True)
    assert asked.prompt.prompt == "<｜begin▁of▁sentence｜>def f("
    assert asked.echo == "def f("


def test_with_a_suffix_the_gap_is_marked_by_special_tokens():
    asked = converted(prompt="a<｜fim▁hole｜>", suffix="b")
    text = asked.prompt.prompt
    assert [text[start:end] for start, end in asked.prompt.special_ranges] == [
        "<｜begin▁of▁sentence｜>",
        "<｜fim▁begin｜>",
        "<｜fim▁hole｜>",
        "<｜fim▁end｜>",
    ]
    assert asked.prompt.special_ranges[2][0] > text.index("<｜fim▁hole｜>")


def test_the_marks_have_the_ids_of_the_tokenizer():
    tokenizer = Tokenizer.from_str(tokenizer_text_v41())
    ids = tokenizer.encode_prompt(converted(prompt="", suffix="").prompt)
    assert ids == [0, 128801, 128800, 128802]


def test_log_probabilities_are_asked_for_by_their_number():
    options = converted(logprobs=0).inference_options
    assert (options.logprobs, options.top_logprobs) == (True, 0)
    assert not converted().inference_options.logprobs


@pytest.mark.parametrize(
    "members",
    [
        {"logprobs": 21},
        {"temperature": 3},
        {"stop": [""]},
        {"stream_options": {}},
        {"max_tokens": 0},
        {"echo": True, "suffix": "x"},
        {"model": "other"},
    ],
)
def test_what_cannot_be_is_refused(members):
    with pytest.raises(ConversionError):
        converted(**members)
