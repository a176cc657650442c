"""Answers in running text: what is taken, what is not."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.eval import extract


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("plain", "plain"),
        ("I think</think>\n\n42", "42"),
        ("a</think>b</think>c", "c"),
        ("<think>never ended", ""),
        ("  <think>r</think>x ", "x"),
    ],
)
def test_only_what_follows_the_thinking_is_the_answer(text, answer):
    assert extract.after_thinking(text) == answer


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"so \boxed{7} no, \boxed{12}.", "12"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {  x_{1} }", "x_{1}"),
        (r"\boxed{7} and \boxed{unfinished", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{}", ""),
        ("no box {5}", None),
        (r"\boxed 5", None),
    ],
)
def test_the_last_box_that_closes_counts(text, boxed):
    assert extract.last_boxed(text) == boxed


nested = st.recursive(
    st.text("ab1 +", max_size=5),
    lambda s: st.lists(s, max_size=3).map("".join).map("{{{}}}".format),
)


@given(nested, st.text("ab\\} ", max_size=8))
def test_any_balanced_content_comes_back_whole(content, tail):
    assert extract.last_boxed(r"x \boxed{" + content + "}" + tail) == content.strip()


@pytest.mark.parametrize(
    ("text", "formula"),
    [
        ("cost $1$ then $$2$$", "2"),
        (r"\(3\) and \[4\]", "4"),
        ("$5", None),
        ("none", None),
    ],
)
def test_the_last_formula_counts(text, formula):
    assert extract.last_math(text) == formula


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("73", 73),
        ("073", 73),
        ("-5", -5),
        ("1,024", 1024),
        ("1{,}024.", 1024),
        ("x = 12", 12),
        (r"\text{ 9 }", 9),
        (r"$45^\circ$", 45),
        (r"45^{\circ}", 45),
        ("12.0", 12),
        ("12.5", None),
        ("1/2", None),
        ("2+3", None),
        ("12,34", None),
        ("twelve", None),
        ("", None),
    ],
)
def test_a_stated_integer_is_read_and_an_expression_is_not_computed(text, value):
    assert extract.as_integer(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("37 + 58 = 95", "95"),
        ("答案是95。", "95"),
        ("一共95个", "95"),
        ("minus: -4.50!", "-4.50"),
        ("12-5", "5"),
        ("1,234,567 people", "1234567"),
        ("it is 3.", "3"),
        ("v2 and x_3", None),
        ("", None),
    ],
)
def test_the_last_number_counts(text, value):
    assert extract.last_number(text) == (None if value is None else Decimal(value))


@given(
    st.integers(-(10**12), 10**12), st.sampled_from(["{}", "so {}.", "= {:,} 元", "**{}**", "是{}"])
)
def test_any_integer_is_found_however_it_is_written(number, form):
    assert extract.last_number(form.format(number)) == number


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: C", "C"),
        ("**Answer:** C", "C"),
        ("Answer: $C$", "C"),
        (r"Answer: \text{(B)}", "B"),
        (r"Answer: \boxed{D}", "D"),
        ("answer: c", "C"),
        ("Answer: c.", "C"),
        ("答案 Answer： B", "B"),
        ("Answer: A, then Answer: B", "B"),
        ("The answer is (D).", "D"),
        ("The correct option is B", "B"),
        ("The answer is A because it fits", None),
        ("The answer is B because it fits", "B"),
        ("Answer: A matter of taste", None),
        ("Answer: Carbon", None),
        ("Answer: because", None),
        ("The answer is a matter of taste", None),
        (r"Thus \boxed{\text{A}}", "A"),
        ("(A) is wrong, so (C)", "C"),
        ("B", "B"),
        ("B.", "B"),
        ("Answer: E", None),
        ("Both A and B are plausible", None),
        ("", None),
    ],
)
def test_the_letter_that_is_named_as_the_answer_counts(text, letter):
    assert extract.last_letter(text, "ABCD") == letter


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Explanation: x\nExact Answer: 5\nConfidence: 80%", "5"),
        ("**Exact Answer:** *blue*", "blue"),
        ("answer: one\nANSWER: two", "two"),
        ("Exact Answer:\n", None),
        ("the answer: no line begins so", None),
    ],
)
def test_a_field_is_the_rest_of_its_line(text, value):
    assert extract.field(text, "Exact Answer", "Answer") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('```json\n{"a": {"b": [2]}}\n```', {"a": {"b": [2]}}),
        ('first {"a": 1} then {"a": 2}', {"a": 2}),
        ('{broken {"a": 1}', {"a": 1}),
        ('{"a": 1, "a": 2}', None),
        ('{"a": 1', None),
        ("[1]", None),
    ],
)
def test_the_last_outermost_object_counts(text, value):
    assert extract.json_object(text) == value


@given(st.text(alphabet='{}[]":,a1\\ \n$()', max_size=60))
def test_no_text_makes_an_extractor_fail(text):
    for take in (
        extract.after_thinking,
        extract.last_boxed,
        extract.last_math,
        extract.as_integer,
        extract.last_number,
        extract.as_number,
        extract.json_object,
    ):
        take(text)
    extract.last_letter(text, "ABCD")
    extract.field(text, "a")


def test_deeply_nested_text_is_no_object_and_no_crash():
    assert extract.json_object('{"a":' * 1500) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(max_size=2), s, max_size=3),
)


@given(json_values, json_values)
def test_json_values_are_equal_to_themselves_and_else_only_if_python_says_so(first, second):
    assert extract.same_json(first, first)
    if extract.same_json(first, second):
        assert first == second


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (1, 1.0, True),
        (Decimal("12.50"), 12.5, True),
        (0.1, Decimal("0.1"), True),
        (True, 1, False),
        ("1", 1, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        (None, False, False),
        (float("nan"), float("nan"), False),
    ],
)
def test_numbers_are_compared_by_value_and_types_are_kept(first, second, same):
    assert extract.same_json(first, second) is same
