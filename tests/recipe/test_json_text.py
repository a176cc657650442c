"""JSON text: what is read, and how values are written."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deepinfer.recipe import json_text
from tests.recipe.conversations import ARGUMENTS, JSON
from tests.recipe.oracle import outcome


@given(JSON)
@example([1e-5, -1.5e-5, 1e-6, 1e-10, 1e16, -0.0, {"e-0": 1e-9}])
def test_every_way_to_write_reads_back(value):
    for write in (json_text.spaced, json_text.spaced_short, json_text.compact):
        assert json_text.parse(write(value)) == value
        assert json.loads(write(value)) == value


@given(JSON)
def test_short_floats_change_nothing_else(value):
    spaced = json_text.spaced(value)
    assert json_text.spaced_short(value) == spaced or "e-0" in spaced
    assert json.loads(json_text.compact(value)) == json.loads(spaced)


@pytest.mark.parametrize(
    ("number", "long", "short"),
    [
        (1e-4, "0.0001", "0.0001"),
        (1e-5, "1e-05", "0.00001"),
        (-1.5e-5, "-1.5e-05", "-0.000015"),
        (1e-6, "1e-06", "1e-6"),
        (-5.25e-8, "-5.25e-08", "-5.25e-8"),
        (1e-10, "1e-10", "1e-10"),
        (1e15, "1000000000000000.0", "1000000000000000.0"),
        (1e16, "1e+16", "1e+16"),
        (-0.0, "-0.0", "-0.0"),
        (5e-324, "5e-324", "5e-324"),
    ],
)
def test_numbers_are_written_as_prompts_have_them(number, long, short):
    assert json_text.spaced([number]) == f"[{long}]"
    assert json_text.spaced_short([number]) == f"[{short}]"
    assert json_text.compact({"a": number}) == f'{{"a":{short}}}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("18446744073709551615", 2**64 - 1),
        ("18446744073709551616", 2.0**64),
        ("-9223372036854775808", -(2**63)),
        ("-9223372036854775809", -(2.0**63)),
        ("123456789012345678901", 1.2345678901234568e20),
        ("-0", -0.0),
        ("1e5", 100000.0),
        ("1e-400", 0.0),
        ('{"a": 1, "b": 2, "a": 3}', {"a": 3, "b": 2}),
        ('"\\ud83d\\ude00"', "😀"),
    ],
)
def test_values_are_read_by_the_rules_of_64_bits(text, value):
    found = json_text.parse(text)
    assert found == value
    assert type(found) is type(value)
    assert json_text.spaced(found) == json_text.spaced(value)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "nul",
            "{",
            "[1,]",
            "01",
            "1.",
            ".5",
            "+1",
            '"\x01"',
            "\ufeff1",
            "'a'",
            "{a: 1}",
        ),
        *(
            "NaN",
            "Infinity",
            "-Infinity",
            "1e400",
            "9" * 400,
            "9" * 5000,
            '"\\ud800"',
            '{"\\udfff":1}',
        ),
        *("[" * 128 + "]" * 128, '{"a":' * 128 + "1" + "}" * 128, "[" * 100_000, '{"a":' * 100_000),
    ],
)
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - every text is json's own
        json_text.parse(text)
    assert json_text.parse_object(text) is None


def test_127_levels_are_read():
    text = '{"a":' * 127 + "1" + "}" * 127
    assert json_text.parse_object(text) is not None
    text = '["[[[[", ' * 127 + "1" + "]" * 127  # brackets in texts are no levels
    assert json_text.parse(text)[0] == "[[[["


@example('{"": 18014398508171263}')  # no double
@given(ARGUMENTS)
def test_what_python_reads_is_read_alike_but_for_numbers(text):
    theirs = outcome(lambda: json.loads(text, parse_int=float))
    ours = outcome(json_text.parse, text)
    if isinstance(theirs, type):
        assert isinstance(ours, type)
    elif not isinstance(ours, type):
        assert json.loads(json_text.spaced(ours), parse_int=float) == theirs
    else:
        assert "NaN" in text or "Infinity" in text or "1e400" in text or "\\ud800" in text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_keep_every_bit(number):
    for write in (json_text.spaced, json_text.compact):
        found = json_text.parse(write(number))
        assert math.copysign(1, found) == math.copysign(1, number)
        assert found == number
