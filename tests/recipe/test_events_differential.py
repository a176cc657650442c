"""Events and responses equal the wheel's, whatever the model wrote and however it was cut."""

from __future__ import annotations

import json
import random
import re

import pytest
from hypothesis import assume, given, seed
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from deepinfer import recipe
from deepinfer.recipe import Tokenizer
from tests.recipe import outputs
from tests.recipe.oracle import tokenizer_text, wheel
from tests.recipe.outputs import Setting, cut, tell

SLOW_SEED = 20261129


@pytest.fixture(scope="module")
def oracle():
    return wheel()


# The named differences; docs/recipe.md has the reasons.


def newline_after_partial_mark(text: str) -> bool:
    """The wheel does not count a newline to a mark if it follows the first half of one."""
    return re.search(r"<(/(t(h(i(nk?)?)?)?)?|/?｜(D(S(ML?)?)?)?)?\n", text) is not None


def odd_parameter_name(text: str) -> bool:
    """The wheel ends names at blanks and does not escape them."""
    return re.search(r'parameter name=(?!"[^" \\\x00-\x1f]*" )', text) is not None


def name_with_newline(text: str) -> bool:
    """The wheel takes anything up to a quote as the name of a tool."""
    return re.search(r'invoke name="[^"\n]*\n', text) is not None


def mark_in_prose(text: str) -> bool:
    """The wheel takes every mark for the start of a block."""
    return re.search(r'<｜DSML｜(?! ?(tool_|function_)?calls>| ?invoke name=")', text) is not None


def mark_without_calls(text: str) -> bool:
    """The wheel drops all that follows the mark of a block, also if no call comes."""
    return "<｜DSML｜" in text


def blanks_joined(text: str) -> str:
    """In JSON mode the wheel writes one blank for every chunk around the JSON."""
    return re.sub(" +", " ", text)


@given(st.data(), outputs.settings())
def test_every_push_gives_the_events_of_the_wheel(oracle, data, setting):
    text = data.draw(outputs.right_outputs(setting.thinking))
    assume(not newline_after_partial_mark(text))
    chunks = data.draw(outputs.cuts(text))
    expected = tell(oracle, setting, chunks)
    told = tell(recipe, setting, chunks)
    assert told.pushes == expected.pushes
    assert told.response == expected.response


@given(st.data(), outputs.settings(), st.sampled_from([[], ["STOP", "\n`"]]))
def test_json_answers_give_the_events_of_the_wheel(oracle, data, setting, stops):
    setting.options.clear()
    setting.options.update(parse_json_output=True, stop_sequences=stops)
    chunks = data.draw(outputs.cuts(data.draw(outputs.json_outputs(setting.thinking))))
    assert tell(recipe, setting, chunks) == tell(oracle, setting, chunks)


def message(told) -> tuple[str, str, list[tuple[str, str]]]:
    choice = json.loads(told.response)["choices"][0]["message"]
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in choice.get("tool_calls", [])
    ]
    return choice.get("reasoning_content") or "", choice["content"] or "", calls


def assert_no_unnamed_difference(oracle, text: str, setting: Setting) -> None:
    theirs, ours = message(tell(oracle, setting, [text])), message(tell(recipe, setting, [text]))
    if setting.options["parse_json_output"]:
        theirs = (theirs[0], blanks_joined(theirs[1]), theirs[2])
        ours = (ours[0], blanks_joined(ours[1]), ours[2])
    if ours == theirs:
        return
    if setting.options["parse_tool_calls"] and mark_without_calls(text):
        # Never fewer calls, never less text than the wheel leaves.
        if odd_parameter_name(text) or name_with_newline(text) or mark_in_prose(text):
            return
        assert len(ours[2]) >= len(theirs[2])
        assert len(ours[0] + ours[1]) >= len((theirs[0] + theirs[1]).strip())
        return
    assert newline_after_partial_mark(text)


@given(outputs.broken_outputs(), outputs.settings(broken=True))
def test_broken_markup_differs_only_in_named_ways(oracle, text, setting):
    chat = Setting("chat", setting.thinking, setting.finish, setting.ready, setting.options)
    assert_no_unnamed_difference(oracle, text, chat)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_events_of_twenty_thousand_outputs_equal_the_wheels(oracle, part):
    @seed(SLOW_SEED + part)
    @hypothesis_settings(max_examples=1000, database=None)
    @given(st.data(), outputs.settings())
    def check(data, setting):
        text = data.draw(outputs.right_outputs(setting.thinking))
        assume(not newline_after_partial_mark(text))
        chunks = cut(text, data.draw(st.sampled_from([1, 2, 3, 7, 1000])))
        assert tell(recipe, setting, chunks) == tell(oracle, setting, chunks)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_twenty_thousand_broken_outputs_differ_only_in_named_ways(oracle, part):
    @seed(SLOW_SEED + part)
    @hypothesis_settings(max_examples=1000, database=None)
    @given(outputs.broken_outputs(), outputs.settings(broken=True))
    def check(text, setting):
        chat = Setting("chat", setting.thinking, setting.finish, setting.ready, setting.options)
        assert_no_unnamed_difference(oracle, text, chat)

    check()


# Output as token ids.

_PIECES = [
    "reason. ",
    "Why?\n\n",
    " 日本語",
    "𝒳 é\n",
    "Hello world.\n",
    "$x^2$ ",
    "🏳️‍🌈",
    "</b> <i>",
]


@pytest.fixture(scope="module")
def tokenizers(oracle):
    text = tokenizer_text()
    return oracle.Tokenizer.from_str(text), Tokenizer.from_str(text)


@st.composite
def token_outputs(draw: st.DrawFn, thinking: bool) -> str:
    pieces = st.lists(st.sampled_from(_PIECES), max_size=3).map("".join)
    text = draw(pieces) + draw(st.sampled_from(["</think>", "</think>\n\n"])) if thinking else ""
    text += draw(pieces) + draw(st.sampled_from(["", " ok STOP", "\n\n"]))
    if draw(st.booleans()):
        text += outputs.one_call("x 日\n")
    return text


@given(st.data(), outputs.settings(), st.booleans())
def test_single_tokens_give_the_events_of_the_wheel(oracle, tokenizers, data, setting, logged):
    text = data.draw(token_outputs(setting.thinking))
    ids = tokenizers[1].encode(text)
    ids += data.draw(st.sampled_from([[], [0], [128803], [128800, 1]]))
    numbers = random.Random(len(text))
    rivals = [(numbers.randrange(128_000), -numbers.random() * 30) for _ in range(3)]
    chunks = [([each], [(-numbers.random(), rivals)] if logged else None) for each in ids]
    expected = tell(oracle, setting, chunks, tokenizers[0])
    told = tell(recipe, setting, chunks, tokenizers[1])
    assert told.pushes == expected.pushes
    assert told.response == expected.response


@given(st.data(), outputs.settings(), st.integers(2, 9))
def test_tokens_in_batches_give_the_texts_of_single_tokens(tokenizers, data, setting, size):
    text = data.draw(token_outputs(setting.thinking))
    ids = tokenizers[1].encode(text)
    logged = [(-0.5, [(token, -0.5)]) for token in ids]
    single = [([ids[i]], [logged[i]]) for i in range(len(ids))]
    batches = [(ids[i : i + size], logged[i : i + size]) for i in range(0, len(ids), size)]
    one = json.loads(tell(recipe, setting, single, tokenizers[1]).response)
    many = json.loads(tell(recipe, setting, batches, tokenizers[1]).response)
    if setting.options.get("stop_sequences"):
        del one["usage"], many["usage"]  # the rest of a batch counts
    assert many == one


@given(st.lists(st.sampled_from([175, 243, 225, 30, 67, 128803, 128822, 1]), max_size=8))
def test_a_special_token_that_cuts_a_character_changes_only_the_pieces(oracle, tokenizers, ids):
    # The wheel tells what is left of the character and the token apart, we in one delta.
    chunks = [([each], None) for each in [*ids, 67]]
    theirs = tell(oracle, Setting(), chunks, tokenizers[0])
    told = tell(recipe, Setting(), chunks, tokenizers[1])
    assert message(told) == message(theirs)
    assert usage_but_reasoning(told) == usage_but_reasoning(theirs)


def usage_but_reasoning(told) -> dict[str, int]:
    usage = json.loads(told.response)["usage"]
    del usage["completion_tokens_details"]
    return usage


def test_marks_written_with_ordinary_tokens_are_text(oracle, tokenizers):
    plain = tokenizers[1]._plain.encode
    spelt = "a</think>b<｜DSML｜ calls>"
    ids = plain(spelt, add_special_tokens=False).ids
    chunks = [([each], None) for each in ids]
    told = tell(recipe, Setting(), chunks, tokenizers[1])
    assert message(told) == (spelt, "", [])
    assert message(told) == message(tell(oracle, Setting(), chunks, tokenizers[0]))


def test_reasoning_tokens_are_the_ids_that_came(oracle, tokenizers):
    # The wheel encodes the reasoning again and counts those tokens.
    ids = [tokenizers[1].encode(text)[0] for text in (" ", "a", " b")]
    chunks = [([each], None) for each in ids]
    counted = [
        json.loads(tell(module, Setting(), chunks, tokenizer).response)["usage"]
        for module, tokenizer in ((recipe, tokenizers[1]), (oracle, tokenizers[0]))
    ]
    details = [usage["completion_tokens_details"]["reasoning_tokens"] for usage in counted]
    assert details == [3, 2]
