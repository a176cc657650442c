"""Faults that users of other engines met, and hostile input: what happens here instead.

Each fault and its test, where that is not in this file with the file:

| fault | test |
|---|---|
| white space until the length limit | white_space_ends_by_itself |
| the same draft fails every time, with errors | illegal_draft_is_no_error_however_often |
| marker of the end of thinking inside drafts | test_matcher: starts_exactly_after_the_marker |
| asked for a mask after an end token in a draft | nothing_is_asked_after_an_end_in_a_draft |
| mask of another text after a roll-back | test_matcher: not_that_of_another_text_as_long |
| a client's broken regex ends the server | broken_regex_is_a_refusal_with_its_position |
| 60,000 nested groups overflow the stack | too_deep_nesting_is_refused_before_it_is_read |
| allOf with several branches ignored | keywords_are_not_dropped_in_company |
| minLength or maxLength ignored beside pattern | keywords_are_not_dropped_in_company |
| long repeats in a pattern crash | long_repeats_are_compiled_and_counted |
| look-around, back-references | broken_regex_is_a_refusal_with_its_position |
| chain of 5,000 unit rules overflows the stack | long_chains_of_rules |
| root ::= root, $ref to itself | what_never_ends_is_refused |
| undefined rule | test_ebnf: broken_grammars |
| hundreds of nested objects take minutes | too_deep_nesting_is_refused_before_it_is_read |
| huge maxItems, maxLength, minItems | huge_counts_are_no_work |
| uniqueItems ignored | test_json_schema: cannot_be_enforced_are_refused |
| minimum above maximum | test_json_schema: broken_schemas_are_refused |
| bounds and constants are rounded to other numbers | numbers_that_would_be_rounded_are_refused |
| a token of more than 1,024 bytes panics | token_that_is_too_long_is_refused |
| a worker dies, hangs or eats memory | test_compiler |
"""

import json
import time

import numpy as np
import pytest

from deepinfer.grammar import AT_ONCE, After, Constraint, Matcher, Vocabulary
from tests.grammar.schemas import rows
from tests.grammar.vocabularies import (
    compiled,
    encode,
    legal_ids,
    refusal_of,
    satisfies,
    tiny_vocabulary,
    vocabulary,
)

END = 1
BLANK = b" \t\r\n"


def schema(value: object) -> Constraint:
    return Constraint("json_schema", json.dumps(value))


def blank_ids() -> set[int]:
    tokens = vocabulary()
    return {
        id
        for id in range(tokens.size)
        if tokens.token_bytes(id) and not tokens.token_bytes(id).strip(BLANK)
    }


OBJECT = schema(
    {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {}},
        "required": ["a", "b"],
    }
)


@pytest.mark.parametrize("constraint", [OBJECT, Constraint("json_object", "")])
def test_white_space_ends_by_itself(constraint):
    matcher = compiled(constraint).matcher()
    blanks, run, longest, seen, in_string = blank_ids(), 0, 0, 0, False
    text = [id for char in '{"a":[1,2],"b":{"c":null}}' for id in encode(char)]
    # A model that wants nothing but white space, and is pushed on only where there can be none.
    for _ in range(2_000):
        legal = legal_ids(matcher)
        near = sorted(legal & blanks, key=lambda id: -len(vocabulary().token_bytes(id)))
        if near and not in_string:
            id = near[0]
            run += len(vocabulary().token_bytes(id))
            seen += 1
        elif text:
            run, id = 0, text.pop(0)
            in_string ^= vocabulary().token_bytes(id) == b'"'
        else:
            break
        longest = max(longest, run)
        assert matcher.accept([id]) == 1
    assert not text
    assert legal_ids(matcher) == {END}  # no white space behind the value
    assert seen > 5
    assert longest <= 34


def test_illegal_draft_is_no_error_however_often():
    matcher = compiled(Constraint("choice", '["yes", "no"]')).matcher()
    wrong, masks = encode("maybe"), rows(6)
    first = legal_ids(matcher)
    for _ in range(20):
        assert matcher.fill_masks(wrong[:5], masks) == 0
        assert matcher.accept(wrong) == 0
    assert legal_ids(matcher) == first
    assert matcher.accept(encode("yes")) == len(encode("yes"))


def test_nothing_is_asked_after_an_end_in_a_draft():
    matcher = compiled(Constraint("regex", "[ab]{1,3}")).matcher()
    a = encode("a")
    masks = rows(6)
    drafts = [*a, END, *a, END, *a]
    assert matcher.fill_masks(drafts, masks) == 2
    assert all((row == vocabulary().all_ones).all() for row in masks[2:6])
    assert matcher.accept(drafts) == 2
    assert matcher.is_terminated
    assert matcher.fill_masks([END, *a], masks) == 0
    assert all((row == vocabulary().all_ones).all() for row in masks[:3])
    with pytest.raises(AssertionError, match="ended text"):
        matcher.fill_mask(masks[0])
    matcher.rollback(1)
    assert not matcher.is_terminated
    assert matcher.accept([*a, END]) == 2


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("[a-z", "unclosed character class at position 0"),
        ("a)(", "at position 1"),
        ("(?<=a)b", "look-around"),
        ("a(?!b)", "look-around"),
        (r"(a+)x\1", "backreferences are not supported at position 5"),
        ("*", "missing expression at position 0"),
        ("a{2}{3", "at position 4"),
    ],
)
def test_broken_regex_is_a_refusal_with_its_position(pattern, says):
    assert says in refusal_of(Constraint("regex", pattern))
    assert "pattern" in refusal_of(schema({"type": "string", "pattern": pattern}))


DEEP = [
    Constraint("regex", "(" * 60_000 + "a" + ")" * 60_000),
    Constraint("regex", "(?:" * 60_000),
    Constraint("regex", "[" * 60_000),
    Constraint("ebnf", "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000),
    Constraint("ebnf", 'root ::= "a"' + "*" * 60_000),
    *(Constraint("json_schema", '{"properties":{"a":' * n + "{}" + "}}" * n) for n in (200, 900)),
    Constraint("json_schema", '{"items":' * 60_000),
    Constraint("json_schema", '{"const":' + "[" * 60_000 + "]" * 60_000 + "}"),
    schema({"type": "string", "pattern": "(" * 60_000 + ")" * 60_000}),
]


@pytest.mark.parametrize("constraint", DEEP, ids=lambda c: c.source[:20])
def test_too_deep_nesting_is_refused_before_it_is_read(constraint):
    began = time.process_time()
    refusal = refusal_of(constraint)
    assert refusal
    assert len(refusal) < 400
    assert time.process_time() - began < 2


def test_keywords_are_not_dropped_in_company():
    two = {"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]},
                     {"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
           "type": "object"}  # fmt: skip
    for name in ("pattern", "format"):
        value = "^[a-z]+$" if name == "pattern" else "hostname"
        short = compiled(schema({"type": "string", name: value, "maxLength": 3, "minLength": 2}))
        assert satisfies(short, encode('"abc"'))
        assert not satisfies(short, encode('"abcd"'))
        assert not satisfies(short, encode('"a"'))
    grammar = compiled(schema(two))
    assert satisfies(grammar, encode('{"a":1,"b":2}'))
    assert not satisfies(grammar, encode('{"a":1}'))
    assert not satisfies(grammar, encode('{"b":1}'))


@pytest.mark.parametrize("count", [128, 129, 130, 257, 1_000])
def test_long_repeats_are_compiled_and_counted(count):
    grammar = compiled(schema({"type": "string", "pattern": f"^a{{1,{count}}}$"}))
    for length, good in ((1, True), (count, True), (count + 1, False), (0, False)):
        assert satisfies(grammar, encode(f'"{"a" * length}"')) == good


def test_long_chains_of_rules_end_in_a_refusal_or_a_grammar():
    def chain(count: int) -> Constraint:
        rules = "\n".join(f"r{i} ::= r{i + 1}" for i in range(count))
        return Constraint("ebnf", f'{rules}\nr{count} ::= "a"\nroot ::= r0')

    assert "more than 1000 rules" in refusal_of(chain(5_000))
    assert satisfies(compiled(chain(900)), encode("a"))


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("ebnf", "root ::= root"),
        Constraint("ebnf", 'root ::= x\nx ::= "a" root'),
        schema({"$ref": "#"}),
        schema({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        schema({"type": "array", "minItems": 1, "items": {"$ref": "#"}}),
    ],
)
def test_what_never_ends_is_refused(constraint):
    assert "end" in refusal_of(constraint)


@pytest.mark.parametrize(
    ("value", "good", "bad"),
    [
        ({"type": "array", "maxItems": 10**9, "items": {"const": 1}}, "[1,1]", "[2]"),
        ({"type": "string", "maxLength": 10**7}, '"abc"', '"a'),
        ({"type": "object", "maxProperties": 10**9}, '{"a":1}', "[]"),
        ({"type": "integer", "maximum": 2**63 - 1}, str(2**63 - 1), str(2**63)),
        ({"type": "string", "minLength": 10**5}, None, '"abc"'),
    ],
)
def test_huge_counts_are_no_work(value, good, bad):
    began = time.process_time()
    grammar = compiled(schema(value))
    assert good is None or satisfies(grammar, encode(good))
    assert not satisfies(grammar, encode(bad))
    assert time.process_time() - began < 2


@pytest.mark.parametrize("number", [2**53 + 1, 10**320, 1.2345678901234567, 1e-30, 2**63, -(2**64)])
def test_numbers_that_would_be_rounded_are_refused(number):
    for keyword in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        said = refusal_of(schema({"type": "number", keyword: number}))
        assert "too many digits" in said or "below 2^63" in said
    if abs(number) > 2**53 and abs(number) < 2**65 and number != 2**53 + 1:
        return  # a double, which can be written
    for value in ({"const": number}, {"enum": [{"a": [number]}]}):
        assert "too many digits" in refusal_of(schema(value))


def test_token_that_is_too_long_is_refused():
    def of(length: int) -> Vocabulary:
        text = {"model": {"vocab": {"a": 0, "a" * length: 1}},
                "added_tokens": [{"content": "<end>", "id": 2}]}  # fmt: skip
        return Vocabulary(json.dumps(text), 3, [2])

    assert len(of(1_000).token_bytes(1)) == 1_000
    with pytest.raises(ValueError, match="token 1 has 1001 bytes"):
        of(1_001)


def test_what_no_token_can_spell_is_an_error_of_its_text_only():
    tokens = tiny_vocabulary()
    for start in (AT_ONCE, After((tokens.control_ids["</think>"],))):
        matcher: Matcher = compiled(Constraint("choice", '["ab!"]'), tokens).matcher(start)
        masks = np.zeros((3, tokens.words), np.int32)
        if start != AT_ONCE:
            matcher.accept(start.trigger)
        assert matcher.accept([11]) == 1
        assert matcher.fill_masks([0, 1], masks) == -1
        assert matcher.copy().fill_masks([], masks) == -1
    assert compiled(Constraint("choice", '["ab"]'), tokens).matcher().accept([11]) == 1
