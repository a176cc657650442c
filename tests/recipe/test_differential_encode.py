"""Prompts of any conversation equal those of the published wheel, for both versions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, seed, settings

from deepinfer import recipe
from tests.recipe.conversations import CONVERSATIONS, SPELLINGS, TEXT, build
from tests.recipe.oracle import outcome, rendered, tokenizer_text, tokenizer_text_v41, wheel

SEED = 20261129
VERSIONS = ("V4", "V41")


def seen_by_the_wheel(version: str, conversation: dict[str, Any]) -> dict[str, Any]:
    """The conversation without what the wheel loses: in V4.1 all but the first of reminders in a
    row. Rendered by us, it is what the wheel makes of the whole.
    """
    messages = conversation["messages"]
    before = [None, *messages]
    kept = [
        message
        for message, last in zip(messages, before, strict=False)
        if version == "V4"
        or message["role"] != "latest_reminder"
        or last is None
        or last["role"] != "latest_reminder"
    ]
    return {**conversation, "messages": kept}


def begins_with_a_thinking_prefix(version: str, conversation: dict[str, Any]) -> bool:
    """In V4.1 the wheel drops the thought of a prefix that is the first message."""
    messages = conversation["messages"]
    is_prefix = bool(messages) and messages[0].get("prefix", False)
    return version == "V41" and conversation["thinking_mode"] and is_prefix


def written(
    module: Any, version: str, conversation: dict[str, Any], spellings: dict[str, str]
) -> Any:
    return rendered(module, version, build(module, conversation), **spellings)


def assert_written_alike(
    version: str, conversation: dict[str, Any], spellings: dict[str, str]
) -> None:
    if begins_with_a_thinking_prefix(version, conversation):
        return
    seen = seen_by_the_wheel(version, conversation)
    theirs = outcome(written, wheel(), version, conversation, spellings)
    assert outcome(written, recipe, version, seen, spellings) == theirs


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=150)
@given(conversation=CONVERSATIONS, spellings=SPELLINGS)
def test_prompts_ranges_and_images_equal_the_wheels(version, conversation, spellings):
    assert_written_alike(version, conversation, spellings)


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
@seed(SEED)
@settings(max_examples=20_000, database=None)
@given(conversation=CONVERSATIONS, spellings=SPELLINGS)
def test_many_prompts_ranges_and_images_equal_the_wheels(version, conversation, spellings):
    assert_written_alike(version, conversation, spellings)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, tuple[Any, Any]]:
    """Our tokenizer and the wheel's, by version."""
    texts = {"V4": tokenizer_text(), "V41": tokenizer_text_v41()}
    pairs = {
        version: (recipe.Tokenizer.from_str(text), wheel().Tokenizer.from_str(text))
        for version, text in texts.items()
    }
    # The file of V4 with our own two renames is as good as the renamed file.
    pairs["V41"] = (pairs["V4"][0].for_v41(), pairs["V41"][1])
    return pairs


def encoded(module: Any, version: str, tokenizer: Any, conversation: dict[str, Any]) -> list[int]:
    encoding = getattr(module, f"Deepseek{version}Encoding")().with_tokenizer(tokenizer)
    return encoding.encode(build(module, conversation))


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60)
@given(conversation=CONVERSATIONS)
def test_ids_equal_the_wheels(tokenizers, version, conversation):
    if begins_with_a_thinking_prefix(version, conversation):
        return
    our_table, their_table = tokenizers[version]
    seen = seen_by_the_wheel(version, conversation)
    ours = outcome(encoded, recipe, version, our_table, seen)
    theirs = outcome(encoded, wheel(), version, their_table, conversation)
    if isinstance(ours, type):  # a placeholder spelled `<IMG>`, which the file does not name
        assert isinstance(theirs, type)
        assert issubclass(ours, theirs)
    else:
        assert ours == theirs


@given(TEXT)
def test_texts_have_the_ids_of_the_wheel(tokenizers, text):
    ours, theirs = tokenizers["V4"]
    assert ours.encode(text) == theirs.encode(text)
