"""Which JSON values are JSON Schemas, and what is wrong with the others."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer.recipe.json_schema import check_json_schema
from deepinfer.recipe.shapes import ShapeError

DRAFT = "http://json-schema.org/draft-0{}/schema#"


def fault(schema: Any) -> tuple[str, str]:
    with pytest.raises(ShapeError) as caught:
        check_json_schema(schema, "s")
    return str(caught.value), caught.value.path


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": ["string", "null"], "maxLength": 2.0, "pattern": "^(?<year>\\d{4})$"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#"}}},
        {"$ref": "#here", "properties": {"b": {"$anchor": "here"}}},
        {"$ref": "#/properties/a~1b/items", "properties": {"a/b": {"items": {}}}},
        {"$defs": {"unused": {"$ref": "#/nowhere", "pattern": "("}}},
        {"if": {"pattern": "("}},
        {"$ref": "part", "$defs": {"a": {"$id": "part", "$ref": "#/$defs/b", "$defs": {"b": {}}}}},
        {"default": {"$ref": "#/nowhere"}, "x-own": {"type": 1}},
        {"$schema": DRAFT.format(7), "items": [{}]},
        {"$schema": DRAFT.format(4), "exclusiveMinimum": True},
        {"pattern": "\\p{L}\\u{41}\\cA"},
    ],
)
def test_schemas_are_accepted(schema):
    check_json_schema(schema, "s")


@pytest.mark.parametrize(
    ("schema", "text", "path"),
    [
        (1, '1 is not of types "boolean", "object"', "s"),
        ({"type": "any"}, '"any" is not valid under any of the schemas', "s.type"),
        ({"type": ["null", "null"]}, '["null","null"] is not valid under any', "s.type"),
        ({"items": {"minLength": -1}}, "-1 is less than the minimum of 0", "s.items.minLength"),
        ({"minLength": 1.5}, '1.5 is not of type "integer"', "s.minLength"),
        ({"multipleOf": 0}, "0 is less than or equal to the minimum of 0", "s.multipleOf"),
        ({"required": ["a", "a"]}, '["a","a"] has non-unique elements', "s.required"),
        ({"anyOf": []}, "[] has less than 1 item", "s.anyOf"),
        ({"items": [{}]}, '[{}] is not of types "boolean", "object"', "s.items"),
        ({"pattern": "("}, '"(" is not a "regex"', "s.pattern"),
        ({"pattern": "a{,5}"}, '"a{,5}" is not a "regex"', "s.pattern"),
        ({"not": {"$ref": "#/q"}}, "Pointer '/q' does not exist", "s.not.$ref"),
        ({"$ref": "#q"}, "Anchor 'q' does not exist", "s.$ref"),
        ({"$ref": "other"}, "Resource 'other' is not present", "s.$ref"),
        ({"pattern": "(", "$defs": {"a": {"$ref": "o#/a"}}}, "Resource 'o#/a'", "s.$defs.a.$ref"),
        ({"$id": "http://host/a", "$ref": "b"}, "Resource 'http://host/b'", "s.$ref"),
        ({"$id": "http://host", "$ref": "//["}, "Invalid URI reference", "s.$ref"),
        ({"$ref": "#/anyOf/" + "9" * 5000, "anyOf": [{}]}, "Pointer '/anyOf/999", "s.$ref"),
        ({"$ref": "#/title", "title": "t"}, '"t" is not of types', "s.$ref"),
        ({"if": {}, "then": {"pattern": "("}}, '"(" is not a "regex"', "s.then.pattern"),
        ({"$schema": "mine"}, "Unknown meta-schema: 'mine'", "s.$schema"),
    ],
)
def test_the_first_fault_is_named_with_its_place(schema, text, path):
    assert fault(schema)[0].startswith(text)
    assert fault(schema)[1] == path


def test_core_keywords_are_checked_before_those_of_validation():
    assert fault({"minLength": -1, "items": 1})[1] == "s.items"
    assert fault({"minLength": -1, "maxLength": -1})[1] == "s.minLength"


def test_many_references_take_linear_time():
    names = [f"a{i}" for i in range(20_000)]
    schema = {
        "properties": {name: {"$ref": "#there"} for name in names},
        "$defs": {"a": {"$anchor": "there"}},
    }
    check_json_schema(schema, "s")
