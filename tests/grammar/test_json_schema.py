import json
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from deepinfer.errors import RequestError
from deepinfer.grammar import Constraint, Grammar, StructuredOutputsParams, constraint_of
from deepinfer.grammar.finished import check_finished
from deepinfer.grammar.json_schema import prepare_schema
from deepinfer.grammar.keywords import ENFORCED, REFUSED
from tests.grammar.schemas import SCHEMAS, as_text, random_text, spelled
from tests.grammar.vocabularies import LIMITS, compiled, encode, satisfies


def grammar_of(schema: Any, **options: Any) -> Grammar:
    return compiled(constraint_of(StructuredOutputsParams(json=schema, **options)))


def accepts(schema: object, text: str) -> bool:
    return satisfies(grammar_of(schema), encode(text))


def grammar_if_possible(schema: object) -> Grammar:
    """The grammar; the example is given up for the few reasons that the generator runs into."""
    try:
        return grammar_of(schema)
    except RequestError as refusal:
        # A minimum above the maximum; a count of properties that are not all required.
        assume(not any(known in str(refusal) for known in ("Unsatisfiable", "min/maxProperties")))
        raise


@given(SCHEMAS, st.integers(0, 1 << 30))
def test_every_finished_text_parses_and_validates(schema, seed):
    grammar = grammar_if_possible(schema)
    ids = random_text(grammar.matcher(), seed)
    if ids is not None:
        assert check_finished(grammar.constraint, as_text(ids)) == ""


@given(SCHEMAS, st.integers(0, 1 << 30), st.sampled_from([None, 2]))
def test_generated_value_written_otherwise_is_accepted_too(schema, seed, indent):
    grammar = grammar_if_possible(schema)
    ids = random_text(grammar.matcher(), seed)
    if ids is None:
        return

    def unique(pairs):
        assume(len(dict(pairs)) == len(pairs))
        return dict(pairs)

    # Python may write a number in another way than it read it.
    value = json.loads(as_text(ids), object_pairs_hook=unique, parse_float=lambda _: assume(False))
    assert satisfies(grammar, encode(spelled(value, indent)))


SUPPORTED = [
    # schema, accepted texts, rejected texts
    ({}, ["1", '"a"', "null", '{"a": [1]}'], ["", "a", " 1", "1 ", "01"]),
    ({"type": "string"}, ['"a\\nb\\"\\\\"', '"日本"'], ['"\\u0061"', "'a'", '"\n"', '"\\x"']),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"日本語"'], ['"a"', '"abcd"']),
    ({"type": "string", "pattern": "b"}, ['"abc"'], ['"ac"']),
    ({"type": "string", "pattern": r"^a\d+$", "maxLength": 3}, ['"a12"'], ['"a123"', '"a٣"']),
    ({"type": "string", "pattern": "^a|b$"}, ['"ax"', '"xb"'], ['"xbx"']),
    ({"type": "string", "format": "ipv4"}, ['"1.2.3.4"'], ['"256.1.1.1"']),
    ({"type": "string", "format": "date"}, ['"2026-11-29"'], ['"2026-13-01"', '"2026-02-30"']),
    ({"type": "integer", "minimum": 3, "maximum": 12, "multipleOf": 4}, ["4", "12"], ["3", "16"]),
    ({"type": "integer"}, ["-7", "0"], ["1.0", "1e3", "00"]),
    ({"type": "number", "exclusiveMinimum": 0}, ["0.1", "7"], ["0", "0.0", "-1"]),
    ({"type": "number", "exclusiveMaximum": 1}, ["0.99", "-5"], ["1", "1.0"]),
    ({"type": ["integer", "null"]}, ["1", "null"], ["true"]),
    ({"enum": [1, "a", {"x": [1]}]}, ["1", '"a"', '{"x": [1]}'], ["2", '"b"']),
    ({"const": "ä/"}, ['"ä/"'], ['"ä"']),
    ({"type": "array", "items": {"type": "integer"}}, ["[]", "[1, 2]"], ["[null]", "[1,]"]),
    ({"type": "array", "minItems": 1, "maxItems": 2}, ["[1]", "[1,2]"], ["[]", "[1,2,3]"]),
    ({"type": "array", "uniqueItems": False}, ["[1,1]"], ["{}"]),
    ({"prefixItems": [{"const": 1}], "items": False, "type": "array"}, ["[1]", "[]"], ["[1,2]"]),
    (
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "array",
         "items": [{"const": 1}], "additionalItems": {"const": 2}},
        ["[1,2,2]"], ["[2]", "[1,1]"],
    ),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]},
        ['{"a":1}', '{"a":1,"c":2}', '{\n  "a": 1,\n  "b": {}\n}'],
        ['{"b":1}', '{"a":"x"}', '{"a":1,"a":"x"}', '{"a":1,"\\u0061":"x"}'],
    ),
    ({"properties": {"a": {}}, "additionalProperties": False, "type": "object"},
     ['{"a":1}', "{}"], ['{"b":1}']),
    ({"additionalProperties": {"type": "null"}, "type": "object"}, ['{"b":null}'], ['{"b":1}']),
    ({"type": "object", "patternProperties": {"^x": {"const": 1}}, "additionalProperties": False},
     ['{"xy":1}'], ['{"xy":2}', '{"y":1}']),
    ({"type": "object", "minProperties": 1, "maxProperties": 1},
     ['{"a":1}'], ["{}", '{"a":1,"b":2}']),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["1", "null"], ["true"]),
    ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, ["1", "null"], ["true"]),
    (
        {"type": "object", "allOf": [
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "string"}}, "required": ["b"]}]},
        ['{"a":1,"b":"x"}'], ['{"a":1}', '{"b":"x"}'],
    ),
    ({"$ref": "#/$defs/a", "minimum": 3, "$defs": {"a": {"type": "integer"}}}, ["4"], ["1"]),
    ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"const": 1}}}, ["1"], ["2"]),
    ({"$ref": "#/definitions/ä ^%25", "definitions": {"ä ^%": {"const": 1}}}, ["1"], ["2"]),
    (
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
         "required": ["next"], "additionalProperties": False},
        ['{"next":{"next":null}}'], ['{"next":{}}'],
    ),
    ({"title": "t", "description": "d", "default": 3, "examples": [1], "deprecated": True,
      "readOnly": True, "writeOnly": False, "$comment": "c", "$id": "urn:x", "type": "integer"},
     ["1"], ["null"]),
]  # fmt: skip


@pytest.mark.parametrize("case", SUPPORTED, ids=lambda case: spelled(case[0])[:60])
def test_supported_keywords_are_enforced(case):
    schema, good, bad = case
    grammar = grammar_of(schema)
    assert [text for text in good if not satisfies(grammar, encode(text))] == []
    assert [text for text in bad if satisfies(grammar, encode(text))] == []


def test_table_of_supported_keywords_is_complete():
    used = {key for schema, _, _ in SUPPORTED for node in _nodes(schema) for key in node}
    assert set(ENFORCED) - used == set()


def _nodes(value: object):
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _nodes(item)


@pytest.mark.parametrize("keyword", [*REFUSED, "uniqueItems"])
def test_keywords_that_cannot_be_enforced_are_refused_by_name_and_place(keyword):
    schema = {"type": "object", "properties": {"a/b": {keyword: True}}}
    with pytest.raises(RequestError) as refusal:
        grammar_of(schema)
    assert f"#/properties/a~1b: {keyword} " in str(refusal.value)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"minLenght": 3}, "'minLenght' is no keyword of JSON Schema; minLength is one"),
        ({"x-custom": 3}, "leave it out"),
        ({"items": {"type": "strin"}}, "#/items: type 'strin'"),
        ({"minLength": "3"}, "an integer"),
        ({"minItems": -1}, "an integer"),
        ({"minItems": True}, "an integer"),
        ({"required": "a"}, "a list of different strings"),
        ({"required": ["a", "a"]}, "a list of different strings"),
        ({"multipleOf": 0}, "a number > 0"),
        ({"enum": []}, "not empty"),
        ({"allOf": []}, "not empty"),
        ({"properties": []}, "an object of schemas"),
        ({"anyOf": [3]}, "#/anyOf/0: 3 is no schema"),
        ({"format": "idn-email"}, "format 'idn-email' cannot be enforced"),
        ({"pattern": "a(b"}, "unclosed group at position 1"),
        ({"pattern": r"a\bc"}, "position 1"),
        ({"patternProperties": {"(": {}}}, "unclosed group"),
        ({"items": [{}]}, "use prefixItems"),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "known drafts"),
        ({"$ref": "http://x.y/z"}, "not inside this schema"),
        ({"$ref": "#/$defs/a"}, "points to nothing"),
        ({"$ref": "#name"}, "JSON pointer"),
        ({"$ref": "#"}, "requires itself without end"),
        ({"allOf": [{"$ref": "#"}]}, "requires itself without end"),
        (
            {"properties": {"n": {"$ref": "#"}}, "required": ["n"], "type": "object"},
            "requires itself without end",
        ),
        (
            {"$ref": "#/$defs/a",
             "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
            "requires itself without end",
        ),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "requires itself without end"),
        ({"type": "object", "minProperties": 2}, "name them in required"),
        ({"enum": ["a\x01"]}, "control character"),
        ({"properties": {"a\x7f": {}}}, "control character"),
        ({"items": {"oneOf": [{"type": "integer"}, {"minimum": 3}]}}, "#/items: oneOf"),
        (
            {"properties": {"x": {"type": "integer", "minimum": 5, "maximum": 3}},
             "required": ["x"], "type": "object"},
            "#/properties/x: Unsatisfiable",
        ),
        ("[" * 100, "more than 64 nested levels at position 64"),
        ('{"a": 1, "a": 2}', "'a' stands twice"),
        ('{"minimum": NaN}', "NaN"),
        ('{"minimum": 1' + "0" * 500 + "}", "digits"),
        ('{"a":', "no JSON at position 5"),
        ("3", "no schema"),
        (False, "false allows no value"),
    ],
)  # fmt: skip
def test_broken_schemas_are_refused_with_place_and_reason(schema, says):
    with pytest.raises(RequestError) as refusal:
        grammar_of(schema)
    assert says in str(refusal.value)


def test_white_space_is_bounded_and_can_be_chosen():
    array = {"type": "array", "items": {"type": "integer"}}
    assert accepts(array, "[\n" + " " * 32 + "1 ,\t2]")
    assert not accepts(array, "[" + " " * 5 + "1]")
    assert not accepts(array, "[\n\n1]")
    tight = grammar_of(array, disable_any_whitespace=True)
    assert satisfies(tight, encode("[1,2]"))
    assert not satisfies(tight, encode("[1, 2]"))
    lines = grammar_of(array, whitespace_pattern=r"\s{0,3}")
    assert satisfies(lines, encode("[\n\n\n1,2]"))
    assert not satisfies(lines, encode("[\n\n\n\n1]"))
    for pattern in ("a*", ".", "[^a]", r"\w", " 1", "("):
        with pytest.raises(RequestError, match="whitespace_pattern"):
            grammar_of(array, whitespace_pattern=pattern)


def test_objects_can_be_closed_where_the_schema_does_not_say():
    schema = {"type": "object", "properties": {"a": {"properties": {"b": {}}, "type": "object"}}}
    closed = grammar_of(schema, disable_additional_properties=True)
    assert satisfies(closed, encode('{"a":{"b":1}}'))
    assert not satisfies(closed, encode('{"c":1}'))
    assert not satisfies(closed, encode('{"a":{"c":1}}'))


def test_json_object_is_any_object():
    grammar = compiled(Constraint("json_object", ""))
    assert satisfies(grammar, encode('{"a": [1, {"b": null}]}'))
    assert not satisfies(grammar, encode("[]"))


@given(SCHEMAS)
def test_preparing_keeps_what_a_schema_means(schema):
    # Formats of dates become patterns, which more validators look at.
    assume('time"' not in json.dumps(schema))
    copy, _ = prepare_schema(json.loads(json.dumps(schema)), LIMITS, open_objects=True)
    jsonschema.Draft202012Validator.check_schema(copy)
    for value in (None, 3, "a", {}, [], {"a": 1}, [1, "b"]):
        before, after = (jsonschema.Draft202012Validator(s).is_valid(value) for s in (schema, copy))
        assert before == after


def test_judge_of_finished_texts_finds_what_is_wrong():
    schema = Constraint("json_schema", '{"type": "number", "multipleOf": 0.1}')
    assert check_finished(schema, "0.3") == ""
    assert "multiple" in check_finished(schema, "0.35")
    assert "no JSON" in check_finished(schema, "0.3 and")
    assert "at /a/0" in check_finished(
        Constraint("json_schema", '{"properties": {"a": {"items": {"pattern": "^\\\\d$"}}}}'),
        '{"a": ["٣"]}',
    )
    for number in ("1e40", "3e3293293202249202290229849", "-1e-99999999999999999999", "1e9999"):
        assert check_finished(schema, number) == ""
        assert check_finished(Constraint("json_schema", '{"type": "number"}'), number) == ""
    assert "no JSON object" in check_finished(Constraint("json_object", ""), "[]")
    assert check_finished(Constraint("json_object", ""), "{}") == ""
    assert "none of the choices" in check_finished(Constraint("choice", '["a"]'), "b")
    assert check_finished(Constraint("regex", "a"), "b") == ""  # nobody else can judge
    assert Decimal("0.3") % Decimal("0.1") == 0
