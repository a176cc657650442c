import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.errors import RequestError
from deepinfer.grammar import Constraint, StructuredOutputsParams, constraint_of, parse_so_args
from deepinfer.grammar.json_text import read_json, write_json


@pytest.mark.parametrize(
    ("given_", "constraint"),
    [
        ({"json": {"b": 1, "a": 2}}, Constraint("json_schema", '{"b": 1, "a": 2}')),
        ({"json": "{}"}, Constraint("json_schema", "{}")),
        ({"json": True}, Constraint("json_schema", "true")),
        ({"regex": ""}, Constraint("regex", "")),
        ({"grammar": "root ::= a"}, Constraint("ebnf", "root ::= a")),
        ({"choice": ["ä", "b"]}, Constraint("choice", '["ä", "b"]')),
        ({"json_object": True}, Constraint("json_object", "")),
        (
            {"json_object": True, "disable_any_whitespace": True},
            Constraint("json_object", "", any_whitespace=False),
        ),
        (
            {"json": "{}", "whitespace_pattern": " ?", "disable_additional_properties": True},
            Constraint("json_schema", "{}", whitespace_pattern=" ?", open_objects=False),
        ),
        ({"regex": "a", "json_object": False}, Constraint("regex", "a")),
    ],
)
def test_parameters_become_one_constraint(given_, constraint):
    assert constraint_of(StructuredOutputsParams(**given_)) == constraint


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({}, "give exactly one of"),
        ({"json_object": False}, "give exactly one of"),
        ({"json": "{}", "regex": "a"}, "give exactly one of"),
        ({"regex": "a", "whitespace_pattern": " "}, "for json and json_object, not for regex"),
        ({"json": "{}", "disable_any_whitespace": True, "whitespace_pattern": " "}, "exclude"),
        ({"regex": 3}, "regex 3: use text"),
        ({"grammar": b"a"}, "use text"),
        ({"choice": []}, "choice is empty"),
        ({"choice": "abc"}, "use a list of strings"),
        ({"choice": [1]}, "choice entry 1: use text"),
        ({"json": [1]}, "use JSON, as text"),
        ({"json": {"a": object()}}, "json is no JSON"),
        ({"regex": "\ud800"}, "lone surrogate at position 0"),
    ],
)
def test_broken_parameters_are_refused_where_they_enter(given_, says):
    with pytest.raises(RequestError) as refusal:
        constraint_of(StructuredOutputsParams(**given_))
    assert says in str(refusal.value)


def test_so_args_of_the_original_are_read():
    args = parse_so_args(
        {"schema_type": "ebnf", "schema": "root ::= a", "trigger_token_ids": [5, 6],
         "bound_token_id": 7}
    )  # fmt: skip
    assert args.constraint == Constraint("ebnf", "root ::= a")
    assert (args.trigger_token_ids, args.bound_token_id) == ((5, 6), 7)
    plain = parse_so_args({"schema_type": "json", "schema": "{}"})
    assert plain.constraint == Constraint("json_schema", "{}")
    assert (plain.trigger_token_ids, plain.bound_token_id) == ((), None)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"schema": "a"}, "schema_type None"),
        ({"schema_type": "xml", "schema": "a"}, "schema_type 'xml'"),
        ({"schema_type": "regex"}, "schema None"),
        ({"schema_type": "regex", "schema": "a", "serialized": "b"}, "serialized"),
        ({"schema_type": "regex", "schema": "a", "trigger_token_ids": 3}, "a list of token ids"),
        ({"schema_type": "regex", "schema": "a", "trigger_token_ids": [-1]}, "an integer >= 0"),
        ({"schema_type": "regex", "schema": "a", "trigger_token_ids": [True]}, "True"),
        ({"schema_type": "regex", "schema": "a", "bound_token_id": 3}, "nothing to force"),
    ],
)
def test_broken_so_args_are_refused(args, says):
    with pytest.raises(RequestError) as refusal:
        parse_so_args(args)
    assert says in str(refusal.value)


def test_keys_tell_every_field_apart():
    kinds = [
        Constraint("regex", "a"),
        Constraint("ebnf", "a"),
        Constraint("regex", "b"),
        Constraint("json_schema", "{}"),
        Constraint("json_schema", "{}", any_whitespace=False),
        Constraint("json_schema", "{}", whitespace_pattern=" "),
        Constraint("json_schema", "{}", open_objects=False),
    ]
    assert len({one.key for one in kinds}) == len(kinds)
    assert Constraint("regex", "a").key == kinds[0].key


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("a\"\\[{}]\n日", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)  # fmt: skip


@given(JSONS)
def test_json_is_read_as_it_was_written(value):
    assert read_json(write_json(value), 64, "it") == value


@given(JSONS, st.integers(0, 4))
def test_depth_is_counted_outside_strings(value, most):
    text, depth = json.dumps(value), _depth(value)
    if depth <= most:
        assert read_json(text, most, "it") == value
    else:
        with pytest.raises(RequestError, match=f"more than {most} nested levels"):
            read_json(text, most, "it")


def _depth(value: object) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    elif not isinstance(value, list):
        return 0
    return 1 + max(map(_depth, value), default=0)
