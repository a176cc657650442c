import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.grammar import Constraint
from deepinfer.grammar.regex import escape, search_pattern
from tests.grammar.schemas import as_text, random_text
from tests.grammar.vocabularies import (
    compiled,
    encode,
    refusal_of,
    satisfies,
    tiny_vocabulary,
    vocabulary,
)

IDS = {"a": 0, "b": 1, "x": 4, "1": 6, "\n": 10}
TEXTS = ["".join(chars) for length in range(5) for chars in product("ab1\n", repeat=length)]

ATOMS = st.sampled_from(
    ["a", "b", "1", ".", "[ab]", "[^a]", r"\d", r"\D", r"\w", r"[\d\n]", r"\x61", r"\n", "x", ""]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map(lambda p: f"({p[0]}|{p[1]})")
        | st.tuples(
            inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}", "*?", "+?"])
        ).map(lambda p: f"(?:{p[0]}){p[1]}")
    ),
    max_leaves=8,
)
ANCHORED = st.tuples(st.sampled_from(["", "^"]), PATTERNS, st.sampled_from(["", "$"])).map("".join)


@given(ANCHORED)
def test_texts_accepted_are_those_that_python_matches(pattern):
    grammar = compiled(Constraint("regex", pattern), tiny_vocabulary())
    # `$` of Python also matches before a last line break; full matches leave it no such choice.
    wanted = re.compile(pattern.removesuffix("$") if pattern.endswith("$") else pattern, re.ASCII)
    for text in TEXTS:
        ids = [IDS[char] for char in text]
        assert satisfies(grammar, ids) == bool(wanted.fullmatch(text)), text


@given(PATTERNS, st.integers(0, 1 << 30))
def test_every_generated_text_matches(pattern, seed):
    grammar = compiled(Constraint("regex", pattern))
    ids = random_text(grammar.matcher(), seed, most=60)
    if ids is not None:
        assert re.fullmatch(pattern, as_text(ids), re.ASCII)


@given(st.lists(st.text("ab1\n", max_size=3), min_size=1, max_size=5))
def test_choice_is_exactly_its_strings(strings):
    source = Constraint("choice", str([*strings]).replace("'", '"'))
    grammar = compiled(source, tiny_vocabulary())
    for text in TEXTS:
        assert satisfies(grammar, [IDS[char] for char in text]) == (text in strings)


@given(st.sampled_from(["a", "^a", "a$", "^a|b$", "^(a|b)$", "a|b", "[|]|a", r"\^a", "^", "$", ""]))
def test_search_pattern_matches_where_something_is_found(pattern):
    whole = re.compile(search_pattern(pattern))
    for text in TEXTS:
        assert bool(whole.fullmatch(text)) == bool(re.search(pattern.replace("$", r"\Z"), text))


@given(st.text(max_size=20))
def test_escaped_text_matches_itself_alone(text):
    grammar = compiled(Constraint("regex", escape(text)))
    ids = encode(text)
    control = vocabulary().control
    assert satisfies(grammar, ids) == control.isdisjoint(ids)
    assert not satisfies(grammar, [*ids, *encode("!")])
    assert "/" not in escape(text)


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("(ab", "unclosed group at position 0"),
        ("ab[", "unclosed character class at position 2"),
        ("a)", "unopened group at position 1"),
        ("a{3,2}", "at position 1, before '{3,2}'"),
        (r"\d\w(*", "missing expression at position 5"),
        ("a/(", "unclosed group at position 2"),
        ("a\nb(", "unclosed group at position 3"),
        ("x(?=a)", "look-around"),
        (r"(a)\1", "backreferences are not supported at position 3"),
        (r"a\bc", r"'\\b' at position 1"),
        ("a^b", "'^' at position 1"),
        ("a^", "'^' at position 1"),
        ("a\\", "nothing follows the backslash at position 1"),
        (r"\q", "unrecognized escape sequence at position 0"),
        (r"\p{Foo}", "Unicode property not found"),
        ("(?x) a", "free white space"),
        ("(" * 300 + "a" + ")" * 300, "more than 200 nested groups at position 200"),
        ("a" * 3_000_000, "of 3000000 bytes; at most 1048576"),
    ],
)
def test_broken_patterns_are_refused_with_position_and_reason(pattern, says):
    assert says in refusal_of(Constraint("regex", pattern))


@given(st.text("ab()[]{}|*+?^$\\.-0,1dwsbQx<=!:/\n\x00é", max_size=24))
def test_any_text_is_compiled_or_refused(pattern):
    refusal = refusal_of(Constraint("regex", pattern), tiny_vocabulary())
    assert not refusal or refusal.startswith("regex")
